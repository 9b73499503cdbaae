"""Bytes of a file in, findings out; and the comments that allow one."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from muster.errors import did_you_mean
from slurm.lint.finding import WARNING, Finding, Rule, Spot, registered, rule
from slurm.lint.script import MAX_BYTES, Script

_ALLOW = re.compile(r"#\s*muster lint:\s*allow\s+([\w-]+)\s*(?:[,:;(-]\s*)?(.*)")
_ALONE = frozenset({"size", "nul-byte"})
"""A file that one of these is about is not read any further."""


@rule(
    WARNING,
    why="Nobody can tell later whether it still holds; one with a misspelt name allows nothing.",
    fix="'# muster lint: allow RULE, because ...' with the name of a rule",
)
def allow(script: Script) -> Iterator[Spot]:
    """A comment that allows something names a rule and gives a reason."""
    names = [one.name for one in registered()]
    for number, line in enumerate(script.lines, start=1):
        match = _ALLOW.search(line)
        if match and match[1] not in names:
            yield Spot(number, f"there is no rule '{match[1]}'.{did_you_mean(match[1], names)}")
        elif match and not match[2].strip():
            yield Spot(number, f"'{match[1]}' is allowed without a reason")


def rules() -> list[Rule]:
    """Every rule, in order of module and line."""
    package = importlib.import_module("slurm.lint.rules")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        importlib.import_module(f"slurm.lint.rules.{module.name}")
    return registered()


def lint(data: bytes, path: str, here: Path) -> list[Finding]:
    """What is wrong with a batch script; never raises, whatever the bytes are.

    Args:
        data: the file.
        path: its name, for the findings; log folders are looked for beside it.
        here: where it may be submitted from; log folders are looked for there too.
    """
    text = decode(data[: MAX_BYTES + 1])
    script = Script(text, Path(path).parent, here)
    known = rules()
    if len(data) > MAX_BYTES or b"\0" in data:
        known = [one for one in known if one.name in _ALONE]
    allowed = {match[1] for line in script.lines for match in [_ALLOW.search(line)] if match}
    allowed.discard("allow")
    found = [
        Finding(path, one, spot)
        for one in known
        if one.name not in allowed
        for spot in one.find(script)
    ]
    return sorted(found, key=lambda finding: finding.spot.line)


def decode(data: bytes) -> str:
    """Bytes as text from which the same bytes can be made again."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The inverse of `decode`."""
    return text.encode("utf-8", "surrogateescape")
