"""One runner per node at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from muster.errors import CreateError, TemporaryError


@contextlib.contextmanager
def only_one(path: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock; it ends with this process, however that ends.

    Raises:
        TemporaryError: another runner still has it after that time.
        CreateError: the file cannot be made.
    """
    try:
        file = path.open("r+b" if path.exists() else "w+b", buffering=0)
    except OSError as error:
        raise CreateError(str(path), str(error.strerror), "run it as root") from None
    with file:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder = file.read().decode().strip() or "unknown"
            if time.monotonic() >= end:
                what = f"process {holder} is creating this node"
                raise TemporaryError(str(path), what, "wait for it, then run again") from None
            time.sleep(0.2)
        with contextlib.suppress(OSError):  # a full disk: then nobody learns the number
            file.truncate(0)
            file.seek(0)
            file.write(str(os.getpid()).encode())
        yield
