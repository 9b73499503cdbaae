"""Mounts: writable as they were asked for, alive, and there.

A file server that is away is no fault of the node: those findings are of class storage, and nobody
is drained for them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.mounts import mounts
from healthcheck.read.volumes import network_mounts
from healthcheck.registry import check

_UNREAD = Result("UNKNOWN", "cannot list what is mounted")


@check("mounts_writable")
def mounts_writable(facts: Facts) -> Iterator[Result]:
    """No file system on a local disk that the kernel turned read-only because it is damaged."""
    found = facts.once(mounts)
    if found is None:
        yield _UNREAD
        return
    turned = [mount for mount in found.values() if mount.turned_read_only]
    for mount in turned:
        what = f"has {mount.point} ({mount.source}) turned read-only by the kernel"
        yield Result("FAIL", what)
    if not turned:
        yield Result("PASS", "has no file system that turned read-only")


@check("mounts_present", when=("gate", "periodic", "return", "suspect"))
def mounts_present(facts: Facts) -> Iterator[Result]:
    """All `mounts` of the site file are mounted: an empty folder is no file server."""
    found = facts.once(mounts)
    if not facts.site.mounts:
        yield Result("SKIP", "was given no list of mounts")
    elif found is None:
        yield _UNREAD
    else:
        gone = [path for path in facts.site.mounts if (path.rstrip("/") or "/") not in found]
        if gone:
            yield Result("FAIL", f"has not mounted {', '.join(gone)}")
        else:
            yield Result("PASS", f"has mounted all {len(facts.site.mounts)}")


@check("mounts_alive", when=("gate", "periodic", "return", "suspect"))
def mounts_alive(facts: Facts) -> Iterator[Result]:
    """Every mount of a file server answers, and with what is there now."""
    found = facts.once(network_mounts)
    if found is None:
        yield _UNREAD
        return
    if not found:
        yield Result("SKIP", "mounts no file server")
    for path, seen in found.items():
        if seen.hung:
            yield Result("FAIL", f"hangs on {path}: its file server does not answer")
        elif seen.error in (errno.EACCES, errno.EPERM):
            yield Result("PASS", f"is refused by {path}, which so answers")
        elif seen.error is not None:
            yield Result("FAIL", f"cannot use {path}: {os.strerror(seen.error)}")
        elif seen.size_bytes is None:
            yield Result("UNKNOWN", f"cannot say whether {path} answers")
        else:
            yield Result("PASS", f"gets answers from {path}")
