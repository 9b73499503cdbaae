"""The small rules that values of a description follow: names, paths, choices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from muster.errors import ConfigError, did_you_mean

UINT16 = 65533
UINT32 = 2**32 - 3
"""The largest numbers of their width in Slurm: above them stand its own "none" and "no end"."""
_WORD = re.compile(r"""[^\s,=#"'\\]+""")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def name(text: str, where: str) -> None:
    """Raise unless `text` can name something in Slurm."""
    if not _NAME.fullmatch(text):
        raise ConfigError(where, f"'{text}' is no name", "use letters, digits, - and _")


def word(text: str, where: str) -> None:
    """Raise unless `text` can stand in a list of slurm.conf: names of other systems."""
    if not _WORD.fullmatch(text) or not text.isprintable():
        fix = "use one word without , = # quotes and backslash"
        raise ConfigError(where, f"{text!r} is no name", fix)


def host(text: str, where: str) -> None:
    """Raise unless it is a name or an address of a machine."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]+", text):
        raise ConfigError(where, f"{text!r} is no host", "write a name or an address: 10.0.0.5")


def within(number: int, first: int, last: int, where: str) -> None:
    """Raise unless a number is one of a range."""
    if not first <= number <= last:
        what = f"{number} is not from {first} to {last}"
        raise ConfigError(where, what, "give one of these, or leave it out")


def one_of(value: str, known: Iterable[str], where: str) -> None:
    """Raise unless `value` is one of the known ones."""
    known = list(known)
    if value not in known:
        hint = did_you_mean(value, known)
        raise ConfigError(where, f"'{value}' is unknown.{hint}", f"use one of {', '.join(known)}")


def absolute(path: Path, where: str) -> None:
    """Raise unless a path is absolute, plain, and not / itself."""
    text, parts = str(path), path.parts
    plain = text.isprintable() and not re.search(r"\s", text)
    if not path.is_absolute() or len(parts) < 2 or ".." in parts or not plain:
        raise ConfigError(where, f"'{path}' is no absolute path", "write /a/path without spaces")


def unique(names: Iterable[str], where: str) -> None:
    """Raise if a name stands there twice."""
    seen: set[str] = set()
    for item in names:
        if item in seen:
            raise ConfigError(where, f"'{item}' twice", "give each its own")
        seen.add(item)


def port_number(port: int, where: str) -> None:
    """Raise unless it is a port of TCP."""
    if not 1 <= port <= 65535:
        raise ConfigError(where, f"{port} is no port", "give 1 to 65535")
