"""Writing a file so that nothing is ever half written: the new one takes the old one's place."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from muster.errors import CreateError
from muster.ordinary import require_ordinary

_FIX = "make room, or name a place that you can write"


def replace(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Make `data` the content of a file; False: it was that already, and nothing is touched.

    A file that exists keeps its mode and owner, a symbolic link stays one.

    Raises:
        CreateError: it cannot be written, or is a device; what was there is still there.
    """
    target = Path(os.path.realpath(path))
    require_ordinary(path, _FIX)
    old = None
    try:
        with contextlib.suppress(FileNotFoundError):
            if target.read_bytes() == data:
                return False
            old = target.stat()
        fd, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise _cannot(path, error) from None
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
            os.fchmod(fd, old.st_mode & 0o7777 if old else mode)
            if old and os.geteuid() == 0:
                os.fchown(fd, old.st_uid, old.st_gid)
        Path(name).replace(target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise _cannot(path, error) from None
    return True


def _cannot(path: Path, error: OSError) -> CreateError:
    what = f"cannot be written ({error.strerror})"
    return CreateError(str(path), what, _FIX)
