"""Look at folders that may hang: each in a child of its own, all at once, none waited for too long.

A mount whose server is away holds whoever touches it, for minutes or for ever, and a process that
it holds cannot even be killed. Such a child is left behind and remembered (stuck.py), and as long
as it lives the same question is not asked again.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

from healthcheck import stuck

Question = Callable[[], dict[str, Any]]
_POLL_S = 0.005
_GRACE_S = 0.5
_ANSWER_BYTES = 1 << 16  # what a pipe holds, so that no child waits for us
_NOTE_BYTES = 1 << 13  # with every byte escaped it still fits into the pipe


def ask(
    questions: Mapping[str, Question], timeout_s: float, state: Optional[Path] = None
) -> dict[str, Optional[dict[str, Any]]]:
    """Answers by name; None: it hangs, or still hangs since an earlier run; {}: it just failed.

    A child is a fork, which costs a millisecond where a new Python costs twenty.

    Args:
        questions: functions whose answers are small and can be JSON; they run in a child.
        timeout_s: for all of them together.
        state: folder where children that cannot be killed are remembered.
    """
    answers: dict[str, Optional[dict[str, Any]]] = dict.fromkeys(questions)
    children = {
        name: _start(question)
        for name, question in questions.items()
        if stuck.find(state, _marker(name)) is None
    }
    ends = time.monotonic() + max(0.01, timeout_s)
    waiting = dict(children)
    while waiting and time.monotonic() < ends:
        waiting = {n: child for n, child in waiting.items() if not _ended(child[0])}
        if waiting:
            time.sleep(_POLL_S)
    for name, (pid, reader) in children.items():
        if name not in waiting:
            answers[name] = _read(reader)
        os.close(reader)
        if name in waiting and not _killed(pid):
            stuck.mark(state, _marker(name), pid)
    return answers


def space(path: Path) -> dict[str, Any]:
    """Size of the file system that holds `path`, and what of it is free; or {"error": errno}."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"error": error.errno or errno.EIO}
    return {
        "size_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "inodes": found.f_files,
        "free_inodes": found.f_favail,
    }


def try_writing(path: Path) -> dict[str, Any]:
    """Write, sync, read back and delete a file; its `time` is the file server's. Else an errno."""
    try:
        try:
            with path.open("w+b") as file:
                file.write(b"muster")
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                same = file.read() == b"muster"
                when = os.fstat(file.fileno()).st_mtime
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return {"error": error.errno or errno.EIO}
    return {"time": when} if same else {"error": errno.EIO}


def read_note(path: Path) -> dict[str, Any]:
    """The `text` of a small file; empty: there is none in that folder. Else an errno.

    Only what the folder's owner wrote counts: EPERM if it was somebody else.
    """
    try:
        owner = path.parent.stat().st_uid
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {"text": ""}
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_uid != owner:
                return {"error": errno.EPERM}
            return {"text": file.read(_NOTE_BYTES).decode(errors="replace")}
    except OSError as error:
        return {"error": error.errno or errno.EIO}


def _start(question: Question) -> tuple[int, int]:
    """(process, where its answer can be read)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # its whole life; nothing of the parent's output may be flushed a second time
            os.write(writer, json.dumps(question()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def _ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def _killed(pid: int) -> bool:
    """Kill it; False: it is still there after its grace."""
    os.kill(pid, signal.SIGKILL)
    ends = time.monotonic() + _GRACE_S
    while not _ended(pid):
        if time.monotonic() > ends:
            return False
        time.sleep(_POLL_S)
    return True


def _read(reader: int) -> dict[str, Any]:
    os.set_blocking(reader, False)
    try:
        answer = json.loads(os.read(reader, _ANSWER_BYTES))
    except (OSError, ValueError):
        return {}  # it died before it had an answer
    return answer if isinstance(answer, dict) else {}


def _marker(name: str) -> str:
    return "folder" + name.replace("/", "_")
