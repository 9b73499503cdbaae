"""The only door from the checks to the outside: programs, files, file systems and the clock.

Everything behind it can hang on a sick node, so everything has a time limit, and the limits add up
to that of the whole run. Tests give another root for /proc and /sys and put small fake programs
first on PATH; the code is the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional

from healthcheck import folders, stuck
from muster.process import Completed, run

_MOST_BYTES = 8 << 20
_RECORD_BYTES = 1 << 14  # /dev/kmsg refuses a buffer that is shorter than its next record
_MOST_RECORDS_BYTES = 1 << 25
_GRACE_S = 5.0  # for a child that has a time limit of its own
_TIMEX_BYTES = 512  # struct timex has 208; its `status` comes after an int and four longs
_TIMEX_STATUS = 40
_STA_UNSYNC = 0x40


class Env:
    """A door that closes `limit_s` seconds after it was opened.

    Args:
        root: stands for /, for every file and folder.
        limit_s: for everything that goes through this door together.
        state: a folder for what runs remember of each other; None: there is none.
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

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than the run lasts."""
        time.sleep(max(0.0, min(seconds, self.left_s())))

    def variable(self, name: str) -> Optional[str]:
        """An environment variable that Slurm sets; None: it is not set, or empty."""
        return os.environ.get(name) or None

    def run(self, argv: list[str], timeout_s: float) -> Completed:
        """A command, at most `timeout_s` seconds and what the run has left.

        While one that could not be killed still lives, no second one is started: that counts as
        one more time-out.
        """
        program = Path(argv[0]).name
        pid = stuck.find(self._state, program)
        if pid is not None:
            what = f"{program}: process {pid} of an earlier check is stuck"
            return Completed(-signal.SIGKILL, "", what, timed_out=True, left_pid=pid)
        done = run(argv, timeout_s=max(0.01, min(timeout_s, self.left_s())))
        if done.left_pid is not None:
            stuck.mark(self._state, program, done.left_pid)
        return done

    def read(self, path: str) -> Optional[str]:
        """A file under /proc or /sys, stripped; None when it cannot be read."""
        data = self.read_bytes(path, _MOST_BYTES)
        return None if data is None else data.decode(errors="replace").strip(" \t\r\n\0")

    def read_bytes(self, path: str, count: int) -> Optional[bytes]:
        """At most `count` bytes from the beginning of a file; None when it cannot be read."""
        try:
            with self._at(path).open("rb", buffering=0) as file:
                found = b""
                while len(found) < count and (more := file.read(count - len(found))):
                    found += more
                return found
        except OSError:
            return None

    def link(self, path: str) -> Optional[str]:
        """Where a symbolic link under /proc or /sys points to; None when it is none."""
        try:
            return str(self._at(path).readlink())
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """Names in a folder under /proc or /sys; empty when there is none."""
        return self.entries(path) or []

    def entries(self, path: str) -> Optional[list[str]]:
        """The same; None when there is no such folder or it cannot be read."""
        try:
            return sorted(entry.name for entry in self._at(path).iterdir())
        except OSError:
            return None

    def records(self, path: str) -> Optional[str]:
        """All that a device such as /dev/kmsg has to say now; None when there is no such thing.

        Each read of that device gives one record; what was overwritten while we read is left out.

        Raises:
            PermissionError: this user may not.
        """
        try:
            fd = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise
        except OSError:
            return None
        try:
            return _drained(fd).decode(errors="replace")
        finally:
            os.close(fd)

    def space(self, paths: Sequence[str], timeout_s: float) -> dict[str, Optional[dict[str, Any]]]:
        """Size and free space of the file systems that hold these paths (see folders.space).

        None: it hangs. {}: it is not known, for example because the run's time was over.
        """
        questions = {path: partial(folders.space, self._at(path)) for path in paths}
        return self._ask(questions, timeout_s)

    def try_writing(
        self, paths: Sequence[str], name: str, timeout_s: float
    ) -> dict[str, Optional[dict[str, Any]]]:
        """What happens to a file `name` in these folders (see folders.try_writing), likewise."""
        questions = {path: partial(folders.try_writing, self._at(path) / name) for path in paths}
        return self._ask(questions, timeout_s)

    def read_notes(
        self, paths: Sequence[str], timeout_s: float
    ) -> dict[str, Optional[dict[str, Any]]]:
        """Small files in a folder that may hang (see folders.read_note), likewise."""
        questions = {path: partial(folders.read_note, self._at(path)) for path in paths}
        return self._ask(questions, timeout_s)

    def measure_disk(
        self, path: str, name: str, size_bytes: int, timeout_s: float
    ) -> Optional[dict[str, Any]]:
        """Speed of the disk that holds a folder (see deep/disk.py); None: it hangs; {}: unknown."""
        from healthcheck.deep import disk  # noqa: PLC0415  (only burn-in)

        question = partial(disk.measure, self._at(path) / name, size_bytes)
        return self._ask({path: question}, timeout_s)[path]

    def exchange_tcp(self, order: Mapping[str, Any]) -> Optional[dict[str, Any]]:
        """Bytes to and from another node (see deep/tcp.py); None: it hangs; {}: unknown."""
        from healthcheck.deep import tcp  # noqa: PLC0415  (only burn-in)

        question = partial(tcp.exchange, order)
        return self._ask({"tcp": question}, float(order["limit_s"]) + _GRACE_S)["tcp"]

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _ask(
        self, questions: Mapping[str, folders.Question], timeout_s: float
    ) -> dict[str, Optional[dict[str, Any]]]:
        left_s = self.left_s()
        answers = folders.ask(questions, min(timeout_s, left_s), self._state)
        if left_s < timeout_s:  # who had less than the usual time cannot be called hung
            return {path: answer or {} for path, answer in answers.items()}
        return answers

    def clock_synchronised(self) -> Optional[bool]:
        """Whether the kernel believes that somebody keeps its clock right; None: unknown."""
        import ctypes  # noqa: PLC0415  (10 ms, and chrony usually answers)

        state = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: only read
        try:
            if ctypes.CDLL(None).adjtimex(state) < 0:
                return None
        except (OSError, AttributeError):
            return None
        status = int.from_bytes(state.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], sys.byteorder)
        return not status & _STA_UNSYNC

    def remembered(self, name: str) -> Optional[str]:
        """What an earlier run remembered under `name` on this node; None: nothing."""
        if self._state is None:
            return None
        try:
            return (self._state / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def remember(self, name: str, text: str) -> None:
        """Keep a text for later runs, whole or not at all; quietly not, if we may not."""
        if self._state is None:
            return
        temporary = self._state / f".{name}.{os.getpid()}"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._state / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()


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
