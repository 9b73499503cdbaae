"""The only door from the checks to the outside: programs, files, file systems and the clock.

Everything behind it can hang on a sick node, so everything has a time limit, and the limits add up
to that of the whole run. Tests give another root for /proc and /sys and put small fake programs
first on PATH; the code is the same.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from healthcheck import stuck
from muster.process import Completed, run

_POLL_S = 0.005
_MOST_BYTES = 8 << 20
_RECORD_BYTES = 1 << 14  # /dev/kmsg refuses a buffer that is shorter than its next record
_MOST_RECORDS_BYTES = 1 << 25


class ProbeTimeoutError(Exception):
    """A probe did not come back within its time limit."""


class Env:
    """A door that closes `limit_s` seconds after it was opened.

    Args:
        root: stands for / when /proc, /sys and /dev are read.
        limit_s: for everything that goes through this door together.
        state: a folder where programs that cannot be killed are remembered; None: nowhere.
    """

    def __init__(self, root: Path, limit_s: float, state: Optional[Path] = None) -> None:
        self._root, self._state = root, state
        self._ends = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Seconds that this run still has."""
        return self._ends - time.monotonic()

    def now(self) -> float:
        """The node's clock, Unix seconds."""
        return time.time()

    def run(self, argv: list[str], timeout_s: float) -> Completed:
        """A command, at most `timeout_s` seconds and what the run has left.

        While one that could not be killed still lives, no second one is started: that counts as
        one more time-out.
        """
        program = Path(argv[0]).name
        pid = stuck.find(self._state, program)
        if pid is not None:
            what = f"{program}: process {pid} of an earlier check is stuck"
            return Completed(-signal.SIGKILL, "", what, timed_out=True)
        done = run(argv, timeout_s=max(0.01, min(timeout_s, self.left_s())))
        if done.left_pid is not None:
            stuck.mark(self._state, program, done.left_pid)
        return done

    def read(self, path: str) -> Optional[str]:
        """A file under /proc or /sys, stripped; None when it cannot be read."""
        data = self.read_bytes(path, _MOST_BYTES)
        return None if data is None else data.decode(errors="replace").strip()

    def read_bytes(self, path: str, count: int) -> Optional[bytes]:
        """At most `count` bytes from the beginning of a file; None when it cannot be read."""
        try:
            with (self._root / path.lstrip("/")).open("rb", buffering=0) as file:
                found = b""
                while len(found) < count and (more := file.read(count - len(found))):
                    found += more
                return found
        except OSError:
            return None

    def link(self, path: str) -> Optional[str]:
        """Where a symbolic link under /proc or /sys points to; None when it is none."""
        try:
            return str((self._root / path.lstrip("/")).readlink())
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """Names in a folder under /proc or /sys; empty when there is none."""
        try:
            return sorted(entry.name for entry in (self._root / path.lstrip("/")).iterdir())
        except OSError:
            return []

    def records(self, path: str) -> Optional[str]:
        """All that a device such as /dev/kmsg has to say now; None when there is no such thing.

        Each read of that device gives one record; what was overwritten while we read is left out.

        Raises:
            PermissionError: this user may not.
        """
        try:
            fd = os.open(self._root / path.lstrip("/"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise
        except OSError:
            return None
        try:
            return _drained(fd).decode(errors="replace")
        finally:
            os.close(fd)

    def probe(self, function: Callable[[], dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        """What `function` returns, run in a child: a mount that hangs holds whoever touches it.

        The child is a fork, which costs a millisecond where a new Python costs twenty.

        Raises:
            ProbeTimeoutError: no answer in time; a child that cannot be killed is left behind.
        """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _answer(function, writer)
        os.close(writer)
        try:
            return self._collect(child, reader, min(timeout_s, self.left_s()))
        finally:
            os.close(reader)

    def _collect(self, child: int, reader: int, timeout_s: float) -> dict[str, Any]:
        ends = time.monotonic() + timeout_s
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > ends:
                os.kill(child, signal.SIGKILL)
                time.sleep(_POLL_S)
                os.waitpid(child, os.WNOHANG)
                raise ProbeTimeoutError
            time.sleep(_POLL_S)
        said = os.read(reader, 1 << 16)
        if not said:
            raise ProbeTimeoutError
        answer: dict[str, Any] = json.loads(said)
        return answer


def _drained(fd: int) -> bytes:
    data: list[bytes] = []
    size = 0
    while size < _MOST_RECORDS_BYTES:
        try:
            piece = os.read(fd, _RECORD_BYTES)
        except BrokenPipeError:  # EPIPE: older records were overwritten; the next read goes on
            continue
        except OSError:
            break
        if not piece:
            break
        data.append(piece)
        size += len(piece)
    return b"".join(data)


def _answer(function: Callable[[], dict[str, Any]], writer: int) -> None:
    """The child's whole life; nothing of the parent's output may be flushed a second time."""
    try:
        os.write(writer, json.dumps(function()).encode())
    finally:
        os._exit(0)
