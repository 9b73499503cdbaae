"""Memory of processes of this machine, limited by the kernel as a job's cgroup is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(pids: Sequence[int], num_bytes: int) -> Iterator[None]:
    """What these processes take from now on may be so many bytes; beyond, the kernel kills.

    Raises:
        LookupError: there is no memory cgroup here that we may write.
    """
    parent, name = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    group = parent / f"muster-{os.getpid()}-{time.monotonic_ns()}"
    try:
        if parent == V2:
            (V2 / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        (group / name).write_text(str(num_bytes))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a short-lived child
                (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise LookupError(f"no memory cgroup that we may write: {error}") from error
    try:
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                (parent / "cgroup.procs").write_text(left)
        group.rmdir()
