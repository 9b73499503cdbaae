"""Our lines beside those of an operator, whose lines always win and are never touched.

slurm.conf gets one line, `Include muster.conf`, and muster.conf is wholly ours; a key that
slurm.conf or what else it includes sets is left out there. The other files have one block of ours
between two marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from muster.errors import ConfigError

INCLUDE = "muster.conf"
BEGIN = "# >>> muster: written by 'muster slurm-conf render'; lines of your own go outside"
END = "# <<< muster"
_NEW = f"""\
# Slurm's configuration. Lines of your own stand here: they win over those of {INCLUDE}.
Include {INCLUDE}
"""
_INCLUDE = re.compile(r"include\s+(\S+)\s*$", re.IGNORECASE)
_KEY = re.compile(r'([A-Za-z]\w*)\s*=\s*("[^"]*"|\S*)')
_LISTED = ("nodename", "partitionname", "slurmctldhost", "nodeset", "downnodes", "frontendname")
_MOST_INCLUDES = 100


@dataclass(frozen=True)
class Foreign:
    """What an operator's own lines decide.

    Attributes:
        keys: lower-case names of keys.
        partitions: names of partitions.
        nodes: host lists of NodeName lines.
        controllers: there are SlurmctldHost lines.
    """

    keys: frozenset[str]
    partitions: frozenset[str]
    nodes: tuple[str, ...]
    controllers: bool


def _lines(text: str) -> list[str]:
    """Lines as Slurm reads them: a newline alone ends one, a carriage return before it is none."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, continued ones joined, as Slurm reads them."""
    whole = ""
    for line in _lines(text):
        bare = re.sub(r"(?<!\\)#.*", "", line).rstrip()
        if bare.endswith("\\"):
            whole += bare[:-1] + " "
            continue
        whole += bare
        if whole.strip():
            yield whole.strip()
        whole = ""
    if whole.strip():
        yield whole.strip()


def foreign(text: str, read: Callable[[str], Optional[str]]) -> Foreign:
    """What slurm.conf decides without us.

    Args:
        text: slurm.conf.
        read: the text of a file that it includes; None: there is none.
    """
    keys: set[str] = set()
    partitions: set[str] = set()
    nodes: list[str] = []
    waiting, seen = [text], {INCLUDE}
    while waiting and len(seen) < _MOST_INCLUDES:
        for line in logical_lines(waiting.pop()):
            if include := _INCLUDE.match(line):
                if include[1] not in seen and not include[1].endswith(f"/{INCLUDE}"):
                    seen.add(include[1])
                    waiting += [found for found in [read(include[1])] if found is not None]
            elif match := _KEY.match(line):
                key, value = match[1].lower(), match[2].strip('"')
                keys.add(key)
                if key == "partitionname":
                    partitions.add(value)
                elif key == "nodename" and value.upper() != "DEFAULT":
                    nodes.append(value)
    controllers = "slurmctldhost" in keys
    return Foreign(
        frozenset(keys.difference(_LISTED)), frozenset(partitions), tuple(nodes), controllers
    )


def written_out(text: str, read: Callable[[str], Optional[str]], depth: int = 0) -> str:
    """slurm.conf with its includes in their places, but for ours; those that are missing stay."""
    lines = []
    for line in _lines(text):
        include = _INCLUDE.match(line.strip())
        ours = include is None or include[1].rpartition("/")[2] == INCLUDE or depth > 5
        found = None if include is None or ours else read(include[1])
        lines.append(line if found is None else written_out(found, read, depth + 1))
    return "\n".join([*lines, ""])


def includes_ours(text: str) -> bool:
    """Whether slurm.conf has the line that includes muster.conf."""
    found = (_INCLUDE.match(line) for line in logical_lines(text))
    return any(one and one[1].rpartition("/")[2] == INCLUDE for one in found)


def with_include(text: Optional[str]) -> str:
    """slurm.conf with the line that includes ours; all else as it was."""
    if text is None:
        return _NEW
    return text if includes_ours(text) else f"Include {INCLUDE}\n{text}"


def with_block(text: Optional[str], lines: Sequence[str], where: str) -> Optional[str]:
    """A file with our block in it, where it was, else at its end; None: no such file is needed.

    Raises:
        ConfigError: one of the two marks is missing.
    """
    block = "".join(f"{line}\n" for line in [BEGIN, *lines, END]) if lines else ""
    if text is None:
        return block or None
    if text.count(BEGIN) != text.count(END) or text.count(BEGIN) > 1:
        what = "the two lines around muster's part do not belong together"
        raise ConfigError(where, what, f"remove what is between them, and '{BEGIN}', '{END}'")
    before, mark, rest = text.partition(BEGIN)
    if mark:
        _, mark, after = rest.partition(END)
        if not mark:
            raise ConfigError(where, "muster's part ends before it begins", "remove both marks")
        return before + block + after.removeprefix("\r").removeprefix("\n")
    if not block:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{block}"
