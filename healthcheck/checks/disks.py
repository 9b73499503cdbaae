"""Local disks: room on them, their count, their own opinion of their health.

A disk is touched only with a time limit, in a child: it may hang whoever does it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from healthcheck import counters
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.boot import young
from healthcheck.read.disks import Smart, arrays, nvme, smart
from healthcheck.read.volumes import disks
from healthcheck.registry import check

WARN_FREE, WARN_BYTES = 0.15, 100 << 30
FAIL_FREE, FAIL_BYTES = 0.05, 10 << 30
"""Both must be below: a few percent of a large disk are plenty."""
WARN_INODES, FAIL_INODES = 0.05, 0.01
_DAY_S = 24 * 3600.0
_NO_PATHS = Result("SKIP", "was given no disk_paths")
_SMART_BITS = {
    1: "runs out of spare blocks",
    4: "is no longer reliable",
    8: "became read-only",
    16: "lost its backup of memory",
    32: "has persistent memory that became read-only",
}


@check("disk_space", when=("gate", "periodic", "return", "suspect"))
def disk_space(facts: Facts) -> Iterator[Result]:
    """Room on every file system of `disk_paths`."""
    if not facts.site.disk_paths:
        yield _NO_PATHS
    for path, seen in facts.once(disks).items():
        if seen.hung:
            yield Result("FAIL", f"hangs on {path}", "disk_space.hung")
        elif seen.free_bytes is None or not seen.size_bytes:
            why = os.strerror(seen.error) if seen.error else "no answer"
            yield Result("UNKNOWN", f"cannot say how full {path} is: {why}")
        else:
            free = seen.free_bytes / seen.size_bytes
            what = f"has {free:.0%} ({seen.free_bytes / 2**30:.1f} GiB) free on {path}"
            if free < FAIL_FREE and seen.free_bytes < FAIL_BYTES:
                yield Result("FAIL", what)
            elif free < WARN_FREE and seen.free_bytes < WARN_BYTES:
                yield Result("WARN", what)
            else:
                yield Result("PASS", what)


@check("disk_inodes", when=("gate", "periodic", "return", "suspect"))
def disk_inodes(facts: Facts) -> Iterator[Result]:
    """Room for more files on every file system of `disk_paths`."""
    if not facts.site.disk_paths:
        yield _NO_PATHS
    for path, seen in facts.once(disks).items():
        if seen.inodes is None or seen.free_inodes is None:
            yield Result("UNKNOWN", f"cannot say how many files fit on {path}")
        elif seen.inodes == 0:
            yield Result("SKIP", f"has no limit for files on {path}")
        else:
            free = seen.free_inodes / seen.inodes
            what = f"has room for {free:.0%} more files on {path}"
            if free < FAIL_INODES:
                yield Result("FAIL", what)
            else:
                yield Result("WARN" if free < WARN_INODES else "PASS", what)


@check("nvme_count")
def nvme_count(facts: Facts) -> Iterator[Result]:
    """As many local NVMe disks as the profile says."""
    found, expected = facts.once(nvme), facts.profile.nvme_disks
    if found is None:
        yield Result("UNKNOWN", "cannot list its disks in /sys")
        return
    unread = [disk.name for disk in found if disk.model is None]
    count = sum(disk.local for disk in found if disk.model is not None)
    if expected is None:
        yield Result("SKIP", f"has {count} local NVMe disks, no number is expected")
    elif count > expected:
        yield Result("WARN", f"has {count} local NVMe disks, not {expected}", "nvme_count.more")
    elif count == expected:
        yield Result("PASS", f"has {count} local NVMe disks")
    elif count + len(unread) >= expected:
        yield Result("UNKNOWN", f"cannot read what {', '.join(unread)} is")
    else:
        rule = "nvme_count.young" if facts.once(young) else None
        yield Result("FAIL", f"has {count} of {expected} local NVMe disks", rule)


@check("nvme_state")
def nvme_state(facts: Facts) -> Iterator[Result]:
    """The controller of every NVMe disk works."""
    found = facts.once(nvme)
    if found is None:
        yield Result("UNKNOWN", "cannot list its disks in /sys")
        return
    dead = [f"{disk.name} ({disk.state})" for disk in found if disk.state in ("dead", "deleting")]
    odd = [f"{disk.name} ({disk.state})" for disk in found if disk.state == "resetting"]
    unread = [disk.name for disk in found if disk.state is None]
    if dead:
        yield Result("FAIL", f"has dead disks: {', '.join(dead)}")
    elif odd:
        yield Result("WARN", f"has disks that start again: {', '.join(odd)}", "nvme_state.reset")
    elif unread:
        yield Result("UNKNOWN", f"cannot read the state of {', '.join(unread)}")
    else:
        yield Result("PASS" if found else "SKIP", f"has {len(found)} NVMe controllers that work")


@check("disk_array")
def disk_array(facts: Facts) -> Iterator[Result]:
    """No software RAID that lost a member."""
    found = facts.once(arrays)
    if found is None:
        yield Result("UNKNOWN", "has a /proc/mdstat that cannot be read")
        return
    broken = [name for name, whole in found.items() if not whole]
    for name in broken:
        yield Result("FAIL", f"has lost a member of its array {name}")
    if not broken:
        yield Result("PASS" if found else "SKIP", f"has {len(found)} whole arrays")


@check("nvme_smart", when=("periodic", "return", "deep"))
def nvme_smart(facts: Facts) -> Iterator[Result]:
    """No local NVMe disk says of itself that it fails or wears out, or loses more data."""
    if not any(disk.local for disk in facts.once(nvme) or []):
        yield Result("SKIP", "has no local NVMe disk")
        return
    found = facts.once(smart)
    if found is None:
        yield Result("SKIP", "has no nvme program to ask its disks")
        return
    errors = {
        f"nvme.{name}.media": said.media_errors
        for name, said in found.items()
        if said is not None and said.media_errors is not None
    }
    grown = counters.growth(facts, errors, _DAY_S)
    for name, said in found.items():
        if said is None:
            yield Result("UNKNOWN", f"got no answer from its disk {name}")
        else:
            yield _disk(name, said, grown.get(f"nvme.{name}.media") or 0)


def _disk(name: str, said: Smart, more_errors: int) -> Result:
    bad = [text for bit, text in _SMART_BITS.items() if said.warning & bit]
    if bad:
        return Result("FAIL", f"has a disk {name} that {' and '.join(bad)}")
    if more_errors:
        what = f"has a disk {name} with {more_errors} more media errors than a day ago"
        return Result("WARN", what, "nvme_smart.wear")
    if said.warning & 2:
        return Result("WARN", f"has a disk {name} that is too hot", "nvme_smart.wear")
    if (said.used_percent or 0) >= 100:
        what = f"has a disk {name} that used {said.used_percent} % of its life"
        return Result("WARN", what, "nvme_smart.wear")
    return Result("PASS", f"has a disk {name} that finds itself well")
