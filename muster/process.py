"""Run an external command with a time limit, so that nothing of ours ever waits forever.

On a sick node `nvidia-smi`, `df` and `sinfo` hang instead of failing. The command gets its own
session, so the time limit kills its children too. Output goes into anonymous memory and not through
pipes: a grandchild that keeps the pipe open, or a process that cannot even be killed (state D),
would otherwise hold the reader, and a full disk would lose the output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Optional, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KILL_GRACE_S = 0.5
"""How long a killed command may take to vanish before it is left behind."""

RC_CANNOT_START = 126
RC_NOT_FOUND = 127


@dataclass(frozen=True)
class Completed:
    """What a command left.

    Attributes:
        rc: exit status; negative: the signal that ended it; 127: no such command; 126: cannot be
            started. After a time-out -9.
        out: standard output, decoded as UTF-8, damaged bytes replaced.
        err: standard error, likewise; for 126 and 127 the reason.
        timed_out: the time limit ended it, whatever `rc` says.
        left_pid: the process that could not be killed and was left behind (state D).
    """

    rc: int
    out: str
    err: str
    timed_out: bool
    left_pid: Optional[int] = None

    @property
    def ok(self) -> bool:
        """It ended by itself, successfully."""
        return self.rc == 0 and not self.timed_out

    @property
    def reason(self) -> str:
        """One line for a message: the last line it wrote to standard error, or how it ended."""
        if self.timed_out:
            return "no answer within its time limit"
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else f"exit status {self.rc}"


def run(
    argv: Sequence[str],
    timeout_s: float,
    input: Optional[str] = None,  # noqa: A002 - the name subprocess.run uses
    env: Optional[Mapping[str, str]] = None,
) -> Completed:
    """Run `argv` to its end, at most `timeout_s` seconds; a bad end is a result, not an exception.

    Args:
        argv: program and arguments; no shell.
        timeout_s: after this many seconds the command and its process group are killed.
        input: text for its standard input; None: empty.
        env: its whole environment; None: ours.
    """
    with memory_file() as stdin, memory_file() as out, memory_file() as err:
        stdin.write((input or "").encode())
        stdin.seek(0)
        try:
            child = subprocess.Popen(
                list(argv), stdin=stdin, stdout=out, stderr=err, env=env, start_new_session=True
            )
        except FileNotFoundError:
            return Completed(RC_NOT_FOUND, "", f"{argv[0]}: command not found", timed_out=False)
        except OSError as error:
            return Completed(RC_CANNOT_START, "", f"{argv[0]}: {error.strerror}", timed_out=False)
        try:
            rc: Optional[int] = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            rc = None
        finally:  # also when we are interrupted the command does not outlive us
            left = None if child.returncode is not None or _kill(child) else child.pid
        ended = -signal.SIGKILL if rc is None else rc
        return Completed(ended, _text(out), _text(err), timed_out=rc is None, left_pid=left)


def _kill(child: subprocess.Popen[bytes]) -> bool:
    """Kill the group and give it a moment; False: left behind in state D, without a warning."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # else Popen.__del__ warns and keeps it for ever
        return False
    return True


def memory_file() -> BinaryIO:
    """An anonymous file in memory; a temporary file where the system has no memfd."""
    if hasattr(os, "memfd_create"):
        return cast("BinaryIO", os.fdopen(os.memfd_create("muster"), "w+b"))
    return cast("BinaryIO", tempfile.TemporaryFile())


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
