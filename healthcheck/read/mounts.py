"""What is mounted where, and whether the kernel turned a file system read-only by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from healthcheck import lazy

if TYPE_CHECKING:
    from healthcheck.facts import Facts

NETWORK = frozenset(
    ("nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs", "beegfs", "beegfs_nodev", "wekafs",
     "9p", "glusterfs", "pvfs2", "afs")
)  # fmt: skip
"""File systems that can go away; `fuse.*` besides."""

LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "jfs", "reiserfs"))
"""File systems on a disk of the node."""

_NO_LONGER = frozenset(("ro", "emergency_ro", "shutdown"))
_OCTAL = lazy.pattern(r"\\([0-7]{3})")
_FUSE_QUIET = ("fuse.gvfsd-fuse", "fuse.portal", "fuse.lxcfs", "fuse.snapfuse", "fuse.squashfuse")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo.

    Attributes:
        point: where.
        kind: type of the file system.
        source: device or server.
        options: of this mount: what somebody asked for.
        state: of the file system itself; here the kernel says `ro` when it finds damage, a new one
            (seen with 6.18) `emergency_ro`.
    """

    point: str
    kind: str
    source: str
    options: frozenset[str]
    state: frozenset[str]

    @property
    def network(self) -> bool:
        """Its server can go away."""
        fuse = self.kind.startswith("fuse.") and self.kind not in _FUSE_QUIET
        return self.kind in NETWORK or fuse

    @property
    def turned_read_only(self) -> bool:
        """Somebody asked for a writable mount and the kernel took that back.

        `mount -o ro` sets both, a read-only bind mount only the first. An image that a user mounts
        (loop) is no disk of the node.
        """
        ours = self.kind in LOCAL and not self.source.startswith("/dev/loop")
        return ours and "rw" in self.options and not _NO_LONGER.isdisjoint(self.state)


def parse_mountinfo(text: str) -> list[Mount]:
    """Mounts in the order in which they were made; lines that are none are left out."""
    mounts = []
    for line in text.split("\n"):  # alone: other line ends may be in a name
        first, dash, second = line.partition(" - ")
        left, right = first.split(" "), second.split(" ")
        if dash and len(left) >= 6 and len(right) >= 3:
            mounts.append(
                Mount(
                    point=_plain(left[4]),
                    kind=right[0],
                    source=_plain(right[1]),
                    options=frozenset(left[5].split(",")),
                    state=frozenset(right[2].split(",")),
                )
            )
    return mounts


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def mounts(facts: Facts) -> Optional[dict[str, Mount]]:
    """What is seen at each mount point (the last mount covers the others); None: unknown."""
    text = facts.env.read("/proc/self/mountinfo")
    found = parse_mountinfo(text) if text else []
    return {mount.point: mount for mount in found} or None
