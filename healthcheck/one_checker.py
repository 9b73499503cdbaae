"""One health check per node at a time: a prolog must not pile up on a periodic run that hangs.

A lock of the kernel, so nothing stale is ever left behind; only root takes it, because whoever may
lock the file could switch the health checks off.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

_NAME = "checker.lock"
_POLL_S = 0.05


@contextlib.contextmanager
def one_checker(folder: Optional[Path], wait_s: float) -> Iterator[bool]:
    """Hold the lock; gives False when another check still holds it after `wait_s` seconds.

    Without a folder that may be written to (a user's gate) there is no lock, and it gives True.
    A child that is left behind does not keep it: this kind of lock belongs to one process.
    """
    try:
        fd = os.open(_path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _locked(fd, wait_s)
    finally:
        os.close(fd)


def _path(folder: Optional[Path]) -> Path:
    if folder is None:
        raise FileNotFoundError
    return folder / _NAME


def _locked(fd: int, wait_s: float) -> bool:
    ends = time.monotonic() + wait_s
    while not _try(fd):
        if time.monotonic() >= ends:
            return False
        time.sleep(_POLL_S)
    return True


def _try(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
