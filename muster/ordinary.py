"""Whether a file may be put in a place that a person names: a device of root's may stand there.

A rename replaces a device or a FIFO as readily as a file.
"""

from __future__ import annotations

import stat
from pathlib import Path

from muster.errors import CreateError


def require_ordinary(path: Path, fix: str) -> None:
    """Refuse a path where something else than a file is.

    Args:
        path: where a file will be put; a link counts for what it leads to.
        fix: what to do instead.

    Raises:
        CreateError: a folder, a device, a FIFO, or a path that no file can have.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CreateError(str(path), error.strerror or str(error), fix) from None
    if not stat.S_ISREG(mode):
        raise CreateError(str(path), "is no ordinary file", fix)
