"""Programs that even a SIGKILL does not end: remembered, so that no second one is started.

A process in state D on a dead GPU stays until the reboot. A health check that starts another one
every five minutes fills the process table; one marker file per program, `stuck-<program>`, holds
the process id and its start time, because a process id alone is used again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Optional


def find(folder: Optional[Path], program: str) -> Optional[int]:
    """The process id of a stuck `program` that still lives."""
    if folder is None:
        return None
    try:
        pid, start = (folder / f"stuck-{program}").read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if pid.isdigit() and start_time(pid) == start else None


def mark(folder: Optional[Path], program: str, pid: int) -> None:
    """Remember that process `pid` runs `program` and could not be killed."""
    start = start_time(str(pid))
    if folder is None or start is None:
        return
    temporary = folder / f".stuck-{program}.{os.getpid()}"
    with contextlib.suppress(OSError):
        temporary.write_text(f"{pid} {start}\n")
        temporary.replace(folder / f"stuck-{program}")


def start_time(pid: str) -> Optional[str]:
    """When a process started, in clock ticks since boot; None: there is none, or it is a zombie."""
    try:
        text = Path("/proc", pid, "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold blanks and brackets
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else None
