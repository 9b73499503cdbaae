"""File systems: space on the node's own disk, and shared folders that can be written.

A shared folder is tried only before an attempt and before a node returns: not by a thousand nodes
every minute, and not in a prolog, where a file server that is away would drain them all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.volumes import scratch, shared
from healthcheck.registry import check

_SAID = {
    errno.ENOENT: "is not there: is it mounted on this node?",
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is over its quota",
    errno.EROFS: "is mounted read-only",
    errno.ESTALE: "has a stale file handle",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM)


@check("scratch_space")
def scratch_space(facts: Facts) -> Iterator[Result]:
    """Enough free space on the node's own disk."""
    path, least = facts.site.scratch_path, facts.site.scratch_min_free_bytes
    seen = facts.once(scratch)
    if seen.hung:
        yield Result("FAIL", f"hangs on {path}")
    elif seen.error == errno.ENOENT:
        yield Result("FAIL", f"has no folder {path}", rule="scratch_space.missing")
    elif seen.free_bytes is None:
        why = os.strerror(seen.error) if seen.error else "no answer"
        yield Result("UNKNOWN", f"cannot say how full {path} is: {why}")
    elif seen.free_bytes < least:
        yield Result("FAIL", f"has {_gib(seen.free_bytes)} free on {path}, below {_gib(least)}")
    else:
        yield Result("PASS", f"has {_gib(seen.free_bytes)} free on {path}")


@check("shared_writable", when=("gate", "return"))
def shared_writable(facts: Facts) -> Iterator[Result]:
    """A file can be written, read back and deleted in every shared folder."""
    if not facts.shared_paths:
        yield Result("SKIP", "was given no shared folder")
    for path, seen in facts.once(shared).items():
        if seen.hung:
            yield Result("FAIL", f"hangs on {path}: its mount does not answer")
        elif seen.time is not None:
            yield Result("PASS", f"can write to {path}")
        elif seen.error is None:
            yield Result("UNKNOWN", f"cannot say whether {path} can be written: no answer")
        elif seen.error in _DENIED and os.geteuid() == 0:
            yield Result("UNKNOWN", f"may not write to {path} as root (root_squash?)")
        elif seen.error in _DENIED:
            what = f"may not write to {path}: {os.strerror(seen.error)}"
            yield Result("FAIL", what, rule="shared_writable.denied")
        elif seen.error in _FULL:
            # Every node sees the same: taking this one away would burn the spares, not help.
            yield Result("WARN", f"cannot write: {path} {_SAID[seen.error]}")
        else:
            said = _SAID.get(seen.error, f"fails: {os.strerror(seen.error)}")
            yield Result("FAIL", f"cannot write: {path} {said}")


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
