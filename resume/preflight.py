"""Is there space for the next checkpoint? Asked before an attempt and before a save.

A disk that fills up in the middle of a save costs the save and all training steps since the one
before, and looks like anything but a full disk to whoever is left waiting. The last checkpoint
tells how large the next one will be. Standard library only: recipes import it through `resume`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from resume.checkpoint import StorageError, published, read_manifest, sizes


def shortage(checkpoints_dir: Path) -> Optional[str]:
    """Why the next checkpoint will not fit, in words; None: it fits, or nobody can say.

    A quota that the file system does not report as free space is not seen.

    Raises:
        OSError: the storage is away.
    """
    last = last_bytes(checkpoints_dir)
    if last is None:
        return None
    free = free_bytes(checkpoints_dir)
    if free >= last:
        return None
    return f"no space left: {size(free)} free, the last checkpoint has {size(last)}"


def refuse_full(checkpoints_dir: Path, where: str) -> None:
    """Raise StorageError before anything is written that would not fit."""
    why = shortage(checkpoints_dir)
    if why is not None:
        raise StorageError(f"{where}: {why}")


def last_bytes(checkpoints_dir: Path) -> Optional[int]:
    """Size of the newest published checkpoint, as its manifest says; None: there is none."""
    for _, path in published(checkpoints_dir):
        body, _ = read_manifest(path)
        if body is not None:
            return sum(int(fact["bytes"]) for fact in body["files"].values())
    return None


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write there."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def aside_bytes(checkpoints_dir: Path) -> int:
    """What checkpoints that were set aside still take; only a person deletes them."""
    aside = [p for why in ("bad", "rolled_back") for p in checkpoints_dir.glob(f"step_*.{why}*")]
    return sum(number or 0 for path in aside for number in sizes(path).values())


def size(num_bytes: float) -> str:
    """Bytes for people: 1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
