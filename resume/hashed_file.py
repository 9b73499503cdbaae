"""A file that is written and hashed at the same time, so that a checksum costs no second pass.

A thread reads behind the writer what has just been written, from the memory that the system keeps
of it, and hashes it; Python lets both run at once. Closing forces the file to the disk meanwhile.
What is hashed is what a reader would get. Standard library only: recipes import it.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path
from typing import Any, Optional

_BLOCK_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20


class HashedFile(io.BufferedWriter):
    """A new file for writing from front to back; `sha256` is there once closed.

    Raises:
        OSError: from any method, as an ordinary file; from `close` also when it cannot be read back
            or forced to disk.
    """

    def __init__(self, path: Path) -> None:
        self._followed = _Followed(path)
        super().__init__(self._followed, _BUFFER_BYTES)

    @property
    def sha256(self) -> str:
        """Lower-case hex. Of a closed file."""
        return self._followed.digest.hexdigest()

    def still_is(self, path: Path) -> bool:
        """Whether the file was closed, and nobody has written to it since."""
        status = path.stat()
        return self._followed.left == (status.st_size, status.st_mtime_ns)


class _Followed(io.RawIOBase):
    """The raw file with the thread behind it. Cannot seek: what is hashed must not change."""

    def __init__(self, path: Path) -> None:
        self.digest = hashlib.sha256()
        self.written = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self.left: Optional[tuple[int, int]] = None  # size and time of the last change
        self._hashed = 0
        self._ended = False
        self._problem: Optional[OSError] = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def tell(self) -> int:
        return self.written

    def write(self, data: Any) -> int:
        """At most what the system takes at once, as any raw file."""
        count = os.write(self._fd, data)
        with self._news:
            self.written += count
            self._news.notify()
        return count

    def _follow(self) -> None:
        block = memoryview(bytearray(_BLOCK_BYTES))
        while True:
            with self._news:
                self._news.wait_for(lambda: self._ended or self.written > self._hashed)
                ready = self.written - self._hashed
            if not ready:
                return
            try:
                count = os.preadv(self._fd, [block[:ready]], self._hashed)
            except OSError as error:
                self._problem = error
                return
            if not count:
                self._problem = OSError("the file is shorter than what was written to it")
                return
            self.digest.update(block[:count])
            self._hashed += count

    def close(self) -> None:
        """Force it to disk while the rest is hashed."""
        if self.closed:
            return
        try:
            super().close()
            os.fsync(self._fd)
            status = os.fstat(self._fd)
            self.left = (status.st_size, status.st_mtime_ns)
        finally:
            with self._news:
                self._ended = True
                self._news.notify()
            self._thread.join()
            os.close(self._fd)
        if self._problem is not None:
            raise self._problem
