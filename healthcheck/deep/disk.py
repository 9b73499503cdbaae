"""Write a file past the page cache and read it back: how fast, and the same?"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

BLOCK_BYTES = 4 << 20
_KEEP_FREE = 4
"""Never more than a fourth of what is free."""


def measure(path: Path, size_bytes: int) -> dict[str, Any]:
    """Write a file past the page cache, read it back, delete it.

    Where the file system has no direct I/O (tmpfs), the file is synced and dropped from the cache.
    """
    block = mmap.mmap(-1, BLOCK_BYTES)  # direct I/O wants memory at the start of a page
    block.write(os.urandom(BLOCK_BYTES))
    try:
        free = os.statvfs(path.parent)
        num = min(size_bytes, free.f_bavail * free.f_frsize // _KEEP_FREE) // BLOCK_BYTES
        if num == 0:
            return {"error": os.strerror(errno.ENOSPC)}
        try:
            write_s = _write(path, block, num)
            digest, read_s = _read(path, num)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return {"error": os.strerror(error.errno or errno.EIO)}
    data = num * BLOCK_BYTES / 1e6
    return {
        "write_mb_s": data / max(write_s, 1e-9),
        "read_mb_s": data / max(read_s, 1e-9),
        "same": digest == _digest(block, num),
    }


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o600)


def _write(path: Path, block: mmap.mmap, num: int) -> float:
    fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        began = time.monotonic()
        for number in range(num):
            block[:8] = number.to_bytes(8, "little")  # so that a block in the wrong place is seen
            os.write(fd, block)
        os.fsync(fd)
        return time.monotonic() - began
    finally:
        os.close(fd)


def _read(path: Path, num: int) -> tuple[bytes, float]:
    fd = _open(path, os.O_RDONLY)
    into = mmap.mmap(-1, BLOCK_BYTES)
    found, spent_s = blake2b(), 0.0
    try:
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(num):
            began = time.monotonic()
            got = os.readv(fd, [into])
            spent_s += time.monotonic() - began
            found.update(into[:got])
    finally:
        os.close(fd)
    return found.digest(), spent_s


def _digest(block: mmap.mmap, num: int) -> bytes:
    wanted = blake2b()
    for number in range(num):
        block[:8] = number.to_bytes(8, "little")
        wanted.update(block)
    return wanted.digest()
