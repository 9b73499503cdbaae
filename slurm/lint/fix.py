"""`muster lint --fix`: the edits of the findings, unless bash cannot read what comes of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from muster.process import RC_CANNOT_START, RC_NOT_FOUND, run
from slurm.lint.finding import Edit
from slurm.lint.linter import decode, encode, lint
from slurm.lint.script import Script

_ROUNDS = 5
_READ_S = 10


def fixed(data: bytes, path: str, here: Path) -> bytes:
    """The file with every edit that is safe to make; the same bytes if there is none."""
    better = data
    for _ in range(_ROUNDS):  # an edit may make another one possible
        edits = {edit for one in lint(better, path, here) for edit in one.spot.edits}
        if not edits:
            break
        better = encode(edited(decode(better), edits))
    return data if better == data or _is_broken(data, better) else better


def edited(text: str, edits: Iterable[Edit]) -> str:
    """A text with edits made; of two that overlap the first: the other is for the next round."""
    parts, place = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end, e.text)):
        if edit.start >= place:
            parts += [text[place : edit.start], edit.text]
            place = edit.end
    return "".join([*parts, text[place:]])


def _is_broken(before: bytes, after: bytes) -> bool:
    """Bash cannot read it, though it could before, or though it is to run it from now on."""
    script = Script(decode(after), Path(), Path())
    if not script.is_shell or _bash_reads(after) is not False:
        return False
    return not before.startswith(b"#!") or _bash_reads(before.replace(b"\r\n", b"\n")) is True


def _bash_reads(data: bytes) -> Optional[bool]:
    """Whether bash takes the bytes for a script, of which it runs nothing; None: it cannot say."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}  # without BASH_ENV
    done = run(["bash", "-n"], _READ_S, data.decode("utf-8", "replace"), env)
    cannot_say = done.timed_out or done.rc in (RC_CANNOT_START, RC_NOT_FOUND)
    return None if cannot_say else done.ok
