"""How often the kernel has ended a process here because memory ran out: a counter, no log.

The job's own cgroup counts where Slurm makes one; else the counter of the whole node does. Only its
growth during an attempt is looked at, together with a rank that was killed by SIGKILL.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_JOB = re.compile(r"^(?P<path>.*/job_\d+)(?:/|$)")


def kills(root: Path = Path("/")) -> Optional[int]:
    """Processes ended for want of memory so far; None: this kernel does not tell."""
    for folder in _job_folders(_text(root / "proc/self/cgroup"), root / "sys/fs/cgroup"):
        found = [_count(path) for path in (folder / "memory.events", *_old_style(folder))]
        counted = [number for number in found if number is not None]
        if counted:
            return sum(counted)
    return _count(root / "proc/vmstat")


def _job_folders(own: str, mounted: Path) -> list[Path]:
    """The job's folder in cgroup v2, and in v1's memory controller."""
    found = []
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        match = _JOB.match(path)
        if match and controllers in ("", "memory"):
            found.append(mounted / controllers / match["path"].lstrip("/"))
    return found


def _old_style(folder: Path) -> list[Path]:
    """v1 counts in every cgroup for itself, so those of the steps are added up."""
    try:
        return sorted(folder.rglob("memory.oom_control"))
    except OSError:
        return []


def _count(path: Path) -> Optional[int]:
    match = _COUNT.search(_text(path))
    return int(match[1]) if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
