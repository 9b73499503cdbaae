"""People of a local cluster: accounts that are known inside alone, each with a closed home.

The machine's own accounts stay as they are: what the cluster has for /etc/passwd and /etc/group is
mounted over them, in its own namespaces. Only root can start jobs as somebody else, so only a
cluster of root's has people.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIRST_ID = 5001
"""Of user and group; the next free number, if the machine has it."""
HOME = "home"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")
_ACCOUNTS = {"passwd": Path("/etc/passwd"), "group": Path("/etc/group")}


@dataclass(frozen=True)
class Person:
    """One account. Its group has the same name and number."""

    name: str
    number: int
    home: Path


def names(text: str) -> tuple[str, ...]:
    """('ana', 'ben') of `--people ana,ben`.

    Raises:
        UsageError: one of them is no name, or is there twice.
    """
    found = tuple(text.split(","))
    wrong = [name for name in found if not _NAME.fullmatch(name)]
    if wrong or len(set(found)) != len(found):
        what = f"{wrong[0]!r} is no name" if wrong else "a name is there twice"
        raise UsageError(f"--people {text!r}", what, "--people ana,ben")
    return found


def accounts(wanted: Sequence[str], folder: Path, passwd: str, group: str) -> list[Person]:
    """Who gets which number.

    Args:
        wanted: names.
        folder: of the cluster.
        passwd: what this machine has in /etc/passwd.
        group: and in /etc/group.

    Raises:
        UsageError: the machine has a user or group of that name: files would change hands.
    """
    lines = [line.split(":") for line in (*_lines(passwd), *_lines(group))]
    taken = {fields[2] for fields in lines if len(fields) > 2}
    there = {fields[0] for fields in lines}
    for name in wanted:
        if name in there:
            what = f"this machine has a user or group {name!r}"
            raise UsageError("--people", what, "choose another name")
    free = (number for number in range(FIRST_ID, 60000) if str(number) not in taken)
    return [Person(name, number, folder / HOME / name) for name, number in zip(wanted, free)]


def _lines(text: str) -> list[str]:
    """By newlines alone, as the C library reads them."""
    return text.removesuffix("\n").split("\n") if text else []


def passwd_with(passwd: str, people: Iterable[Person]) -> str:
    """/etc/passwd of the cluster."""
    new = (f"{p.name}:x:{p.number}:{p.number}::{p.home}:/bin/bash" for p in people)
    return "\n".join([*_lines(passwd), *new, ""])


def group_with(group: str, people: Iterable[Person]) -> str:
    """/etc/group of the cluster."""
    return "\n".join([*_lines(group), *(f"{p.name}:x:{p.number}:" for p in people), ""])


def read() -> dict[str, str]:
    """This machine's accounts."""
    return {name: path.read_text(encoding="utf-8") for name, path in _ACCOUNTS.items()}


def check(wanted: Sequence[str], folder: Path) -> None:
    """Whether a cluster of ours can have these people.

    Raises:
        UsageError: we are not root, or a name is taken.
    """
    if wanted and os.getuid() != 0:
        what = "only root can run jobs as somebody else"
        raise UsageError("--people", what, "sudo -E muster cluster up --people ...")
    accounts(wanted, folder, **read())


def write(folder: Path, wanted: Sequence[str]) -> None:
    """Make the files that are mounted inside, and the homes: nobody but their owner enters one."""
    own = read()
    people = accounts(wanted, folder, **own)
    (folder / "etc" / "passwd").write_text(passwd_with(own["passwd"], people), "utf-8")
    (folder / "etc" / "group").write_text(group_with(own["group"], people), "utf-8")
    (folder / HOME).mkdir(mode=0o755)
    (folder / HOME).chmod(0o755)
    for person in people:
        person.home.mkdir(mode=0o700)
        shutil.chown(person.home, person.number, person.number)
