"""Folders of our own in places where everybody may write: /dev/shm, /tmp."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def own_folder(folder: Path) -> None:
    """Make a private folder; everybody may write in /dev/shm, links to our files too.

    Raises:
        PermissionError: it is there and not ours.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} is no folder of ours")
