"""Burn-in: does the node compute right, and as fast as its kind?

Only where the node is free: in a maintenance reservation. A test that hangs alone blames nobody; a
pair that hangs counts as failed, because who is to blame is found by swapping partners.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.burn import Burn, allreduce, matmul, pair
from healthcheck.read.disk_speed import disk_speed
from healthcheck.registry import check

FRACTION = 0.9
"""Of the profile's figure that is good enough: measurements differ from day to day."""


def _no_answer(seen: Burn, what: str) -> Result:
    if seen.missing:
        return Result("SKIP", f"has no torch for {what} (deep_python in the site file): {seen.why}")
    return Result("UNKNOWN", f"did not finish {what}: {seen.why}")


@check("deep_matmul", when=("deep",))
def deep_matmul(facts: Facts) -> Iterator[Result]:
    """Every device multiplies matrices without a wrong bit, and all of them alike."""
    seen = facts.once(matmul)
    if seen.why is not None:
        yield _no_answer(seen, "products of matrices")
        return
    sums = [str(rank.get("checksum")) for rank in seen.ranks]
    usual = max(set(sums), key=sums.count)
    clear = sums.count(usual) * 2 > len(sums)
    bad = False
    for rank in seen.ranks:
        device = str(rank.get("device"))
        if rank["wrong"] or rank.get("changed"):
            what = f"computes wrong on {device}: {rank['wrong']} products of {rank.get('count')}"
            yield Result("FAIL", f"{what}, {rank.get('changed')} changed", gpu=device)
            bad = True
        elif clear and rank.get("checksum") != usual:
            yield Result("FAIL", f"computes on {device} otherwise than its others", gpu=device)
            bad = True
    if not bad and not clear and len(sums) > 1:
        yield Result("FAIL", "computes differently on its devices", "deep_matmul.split")
    elif not bad:
        what = f"multiplies right on {len(seen.ranks)} devices"
        yield Result("PASS", what, checksum=f"{seen.ranks[0].get('name')}/{usual}")


@check("deep_allreduce", when=("deep",))
def deep_allreduce(facts: Facts) -> Iterator[Result]:
    """All-reduce among the devices of the node is right, and as fast as the profile says."""
    seen = facts.once(allreduce)
    if seen.why is not None:
        yield _no_answer(seen, "an all-reduce among its devices")
    else:
        yield _sums(seen, "among its devices", facts.profile.allreduce_busbw_gb_s, "deep_allreduce")


@check("pair_allreduce", when=("pair",))
def pair_allreduce(facts: Facts) -> Iterator[Result]:
    """All-reduce between this node and its partner is right, ends, and is fast enough."""
    seen = facts.once(pair)
    if seen.missing or (
        seen.why is not None and not seen.hung and seen.why.startswith("it is not")
    ):
        yield _no_answer(seen, "an all-reduce with its partner")
    elif seen.why is not None:
        yield Result("FAIL", f"did not finish an all-reduce with its partner: {seen.why}")
    else:
        yield _sums(seen, "with its partner", facts.profile.pair_busbw_gb_s, "pair_allreduce")


def _sums(seen: Burn, where: str, expected: Optional[float], name: str) -> Result:
    wrong = [str(rank.get("device")) for rank in seen.ranks if rank["wrong"]]
    speeds = [rank["gb_s"] for rank in seen.ranks if isinstance(rank.get("gb_s"), float)]
    speed = min(speeds, default=0.0)
    if wrong:
        return Result("FAIL", f"sums wrong {where}, seen by {', '.join(wrong[:8])}")
    if len(speeds) < len(seen.ranks):
        return Result("UNKNOWN", f"did not say how fast it sums {where}")
    what = f"sums {where} at {speed:.3g} GB/s"
    if expected is not None and speed < FRACTION * expected:
        return Result("FAIL", f"{what} of {expected:g}", f"{name}.slow", value=speed)
    return Result("PASS", what, value=speed)


@check("deep_disk", when=("deep",))
def deep_disk(facts: Facts) -> Iterator[Result]:
    """The node's own disk gives back what was written, as fast as the profile says."""
    seen = facts.once(disk_speed)
    if seen is None:
        yield Result("UNKNOWN", f"hangs while it writes to {facts.site.scratch_path}")
    elif seen.error is not None:
        yield Result("UNKNOWN", f"cannot write to {facts.site.scratch_path}: {seen.error}")
    elif not seen.same:
        yield Result("FAIL", f"reads other bytes from {facts.site.scratch_path} than it wrote")
    else:
        write, read = seen.write_mb_s, seen.read_mb_s
        what = f"writes {write:.0f} and reads {read:.0f} MB/s on {facts.site.scratch_path}"
        wanted = (facts.profile.disk_write_mb_s or 0.0, facts.profile.disk_read_mb_s or 0.0)
        if write < FRACTION * wanted[0] or read < FRACTION * wanted[1]:
            what += f" where {wanted[0]:g} and {wanted[1]:g} are expected"
            yield Result("FAIL", what, "deep_disk.slow", value=min(write, read))
        else:
            yield Result("PASS", what, value=min(write, read))
