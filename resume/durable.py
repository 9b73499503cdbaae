"""Writes that are whole or not there: temporary name, fsync, rename, fsync of the folder.

Everything that a later attempt reads is written through here, because a node may lose power between
any two instructions. Standard library only: recipes import it through `resume`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Optional

_TAIL_BYTES = 4096


def fsync_dir(path: Path) -> None:
    """Make a rename or a new name in the folder survive a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Make the content of a file survive a power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, text: str) -> None:
    """Replace a small file so that every reader sees the old or the new content, never a part.

    Whoever waits for the file may rename its folder at once (the last seal of a checkpoint lets
    rank 0 publish it), so after the rename only the open folder is used, never its name.
    """
    # One temporary name per process: two writers never share one.
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        temporary.replace(path)
        os.fsync(folder)
    finally:
        os.close(folder)


def json_text(value: Any) -> str:
    """What `write_json` writes for a value."""
    return json.dumps(value, sort_keys=True) + "\n"


def write_json(path: Path, value: Any) -> None:
    """`write_whole` of a JSON value."""
    write_whole(path, json_text(value))


def read_json(path: Path) -> Any:
    """The JSON value of a file; None when it is not there or not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):  # the last: garbage like [[[[[[...
        return None


def append_line(path: Path, value: Any, *, durable: bool = True) -> None:
    """Append one JSON line; a torn last line of a writer that died is closed first."""
    line = (json.dumps(value) + "\n").encode()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:  # a disk that fills up takes a part, and refuses only the rest
            line = line[os.write(fd, line) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_lines(path: Path, last_bytes: Optional[int] = None) -> list[dict[str, Any]]:
    """All whole JSON objects of a line file, in order; torn or foreign lines are passed over.

    Args:
        path: the file; none is no line.
        last_bytes: only those of so many bytes at its end.
    """
    values: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            if last_bytes is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return values
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            values.append(value)
    return values


def last_line(path: Path, wanted: Callable[[str], bool]) -> str:
    """The last line of a log that is wanted, without blanks around it; empty: there is none.

    Only the last 4 KiB are looked at.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip() and wanted(line)), "")
