"""The clock: a node that is a minute off breaks munge, certificates and the order of files."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.registry import check

WARN_S = 5.0
FAIL_S = 60.0  # munge refuses at 300 s


@check("clock", when=("gate", "return", "periodic"))
def clock(facts: Facts) -> Iterator[Result]:
    """The node's time against the time it was given, else against the shared file system's."""
    reference, source = facts.reference_time, "the reference"
    if reference is None and facts.when != "periodic":
        times = [seen.time for seen in facts.shared.values() if seen.time is not None]
        reference, source = (times[0] if times else None), "the shared file system"
    if reference is None:
        yield Result("SKIP", "was given no time to compare its clock with")
        return
    off = facts.env.now() - reference
    status = "FAIL" if abs(off) > FAIL_S else "WARN" if abs(off) > WARN_S else "PASS"
    way = "ahead of" if off >= 0 else "behind"
    yield Result(status, f"has a clock {abs(off):.1f} s {way} {source}")  # type: ignore[arg-type]
