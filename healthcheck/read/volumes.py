"""File systems from a user's view: how much fits, and can a file be written?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from healthcheck.read.mounts import mounts

if TYPE_CHECKING:
    from healthcheck.facts import Facts

SHM = "/dev/shm"  # noqa: S108  (the kernel's name for it)
MOST_MOUNTS = 64
"""A login node may mount a home for each of its users: not all of them are touched."""

_LIMIT_S = 3.0


@dataclass(frozen=True)
class Volume:
    """What happened in a folder; what is not known is None.

    Attributes:
        hung: nobody who touches it comes back.
        error: an errno.
        time: Unix time of the file server.
    """

    hung: bool = False
    error: Optional[int] = None
    size_bytes: Optional[int] = None
    free_bytes: Optional[int] = None
    inodes: Optional[int] = None
    free_inodes: Optional[int] = None
    time: Optional[float] = None


def volumes(answers: Mapping[str, Optional[Mapping[str, Any]]]) -> dict[str, Volume]:
    """From what the door answers."""
    return {
        path: Volume(hung=True) if answer is None else Volume(**answer)
        for path, answer in answers.items()
    }


def scratch(facts: Facts) -> Volume:
    """The node's own disk; for `facts.once`."""
    path = str(facts.site.scratch_path)
    return volumes(facts.env.space([path], _LIMIT_S))[path]


def disks(facts: Facts) -> dict[str, Volume]:
    """`disk_paths` of the site file; for `facts.once`."""
    return volumes(facts.env.space(facts.site.disk_paths, _LIMIT_S))


def network_mounts(facts: Facts) -> Optional[dict[str, Volume]]:
    """Mounts whose server can go away; None: what is mounted is not known. For `facts.once`."""
    found = facts.once(mounts)
    if found is None:
        return None
    paths = [mount.point for mount in found.values() if mount.network]
    return volumes(facts.env.space(paths[:MOST_MOUNTS], _LIMIT_S))


def shared_memory(facts: Facts) -> Volume:
    """The shared memory; for `facts.once`."""
    return volumes(facts.env.space([SHM], _LIMIT_S))[SHM]


def shared(facts: Facts) -> dict[str, Volume]:
    """A file written, read and deleted in every shared folder; for `facts.once`."""
    name = f".muster_probe_{facts.node}_{os.getpid()}"
    return volumes(facts.env.try_writing(facts.shared_paths, name, _LIMIT_S))
