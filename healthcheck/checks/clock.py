"""The clock: a node that is a minute off breaks munge, certificates and the order of files."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.time_sync import time_sync
from healthcheck.read.volumes import shared
from healthcheck.registry import check

WARN_S = 5.0
SYNC_WARN_S = 1.0
FAIL_S = 60.0  # munge refuses at 300 s


@check("clock", when=("gate", "return", "periodic"))
def clock(facts: Facts) -> Iterator[Result]:
    """The node's time against the time it was given, else against the shared file system's."""
    reference, source = facts.reference_time, "the reference"
    if reference is None and facts.when != "periodic":
        seen = facts.once(shared).values()
        times = [one.time for one in seen if one.time is not None]
        reference, source = (times[0] if times else None), "the shared file system"
    if reference is None and source == "the shared file system" and facts.shared_paths:
        yield Result("UNKNOWN", "got no time from the shared file system to compare its clock with")
        return
    if reference is None:
        yield Result("SKIP", "was given no time to compare its clock with")
        return
    off = facts.env.now() - reference
    status = "FAIL" if abs(off) > FAIL_S else "WARN" if abs(off) > WARN_S else "PASS"
    way = "ahead of" if off >= 0 else "behind"
    yield Result(status, f"has a clock {abs(off):.1f} s {way} {source}")  # type: ignore[arg-type]


@check("clock_sync", when=("gate", "return", "periodic"))
def clock_sync(facts: Facts) -> Iterator[Result]:
    """Somebody keeps the clock right, and it is not far off."""
    seen = facts.once(time_sync)
    if seen.synchronised is None:
        yield Result("UNKNOWN", f"cannot say whether its clock is kept right: {seen.source}")
    elif seen.off_s is not None and seen.off_s > FAIL_S:
        yield Result("FAIL", f"has a clock {seen.off_s:.1f} s off, says {seen.source}")
    elif not seen.synchronised:
        yield Result("WARN", f"has a clock that nobody keeps right, says {seen.source}")
    elif seen.off_s is not None and seen.off_s > SYNC_WARN_S:
        yield Result("WARN", f"has a clock {seen.off_s:.1f} s off, says {seen.source}")
    else:
        yield Result("PASS", f"has a clock that is kept right, says {seen.source}")
