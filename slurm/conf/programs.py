"""The programs that our lines of slurm.conf name: prolog, epilog, health check, task prolog."""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path

from muster.errors import CreateError
from slurm.files import replace

NAMES = (
    "muster_health.sh",
    "health_check.sh",
    "task_prolog.sh",
    "prolog.d/muster_health.sh",
    "prolog.d/muster_jobs.sh",
    "epilog.d/muster_health.sh",
    "epilog.d/muster_jobs.sh",
)
"""Below slurm/ here; what is called comes before what calls it."""
_MODE = 0o755


def install(folder: Path, *, dry: bool = False) -> dict[Path, str]:
    """Put them into a folder; what else is there stays.

    Args:
        folder: `muster` below the folder of slurm.conf.
        dry: change nothing.

    Returns:
        {file: new, changed or unchanged}.

    Raises:
        CreateError: one cannot be written; what was there is still there.
    """
    told = {}
    for name in NAMES:
        path, data = folder / name, _program(name)
        told[path] = _state(path, data)
        if dry or told[path] == "unchanged":
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fix = "make room, or name another place with --dir"
            raise CreateError(str(path.parent), str(error.strerror), fix) from None
        replace(path, data, _MODE)
        path.chmod(_MODE)
    return told


def _state(path: Path, data: bytes) -> str:
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a path that is too long
        return "new"
    try:
        whole = path.is_file() and path.read_bytes() == data  # a FIFO would be waited for
        same = whole and path.stat().st_mode & 0o7777 == _MODE
    except OSError:
        return "changed"
    return "unchanged" if same else "changed"


def _program(name: str) -> bytes:
    data = pkgutil.get_data("slurm", name)
    if data is None:
        raise FileNotFoundError(name)
    return data
