"""What the NVIDIA driver reported in the kernel log since boot: Xid, SXid, a GPU that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from healthcheck.facts import Facts
from healthcheck.faults import Verdict, verdicts
from healthcheck.finding import Result
from healthcheck.read.gpu import expected, smi, without_gpus
from healthcheck.read.xid import Event, Faults, faults, gpu_at
from healthcheck.registry import check

_SAID = {"off": "fell off the bus", "init": "cannot be started", "gsp": "has a GSP that is silent"}


@check("xid")
def xid(facts: Facts) -> Iterator[Result]:
    """The driver has reported no fault of a GPU (Xid) since boot."""
    yield from _reported(facts, "xid", "Xid")


@check("sxid")
def sxid(facts: Facts) -> Iterator[Result]:
    """The driver has reported no fault of an NVSwitch (SXid) since boot."""
    yield from _reported(facts, "sxid", "SXid")


@check("gpu_gone")
def gpu_gone(facts: Facts) -> Iterator[Result]:
    """The kernel log has no GPU that fell off the bus or cannot be started, with or without Xid."""
    seen = facts.once(faults)
    if not _readable(facts, seen):
        yield _not_read(facts, seen)
        return
    gone = [event for event in seen.events if event.kind in _SAID]
    for event in gone:
        yield Result(
            "FAIL", f"has a GPU at {event.bus or 'an unnamed address'} that {_SAID[event.kind]}",
            rule=_gone_rule(facts, event, gone), gpu=_name(facts, event), time=event.time,
        )  # fmt: skip
    if not gone:
        yield Result("PASS", "has no lost GPU in its kernel log")


def _gone_rule(facts: Facts, event: Event, gone: list[Event]) -> str:
    """When no GPU at all can be started it is the driver, not all of them at once."""
    if event.kind != "init":
        return "gpu_gone.gsp" if event.kind == "gsp" else "gpu_gone"
    failed = {other.bus for other in gone if other.kind == "init"}
    count = facts.once(expected)
    return "gpu_gone.all" if count is not None and len(failed) >= count > 1 else "gpu_gone.init"


def _reported(facts: Facts, kind: str, word: str) -> Iterator[Result]:
    seen = facts.once(faults)
    if not _readable(facts, seen):
        yield _not_read(facts, seen)
        return
    asked = {
        gpu.bus.rpartition(".")[0]: action
        for gpu in facts.once(smi).gpus
        if (action := gpu.get("gpu_recovery_action")) is not None
    }
    found = [verdict for verdict in verdicts(seen.events, asked) if verdict.event.kind == kind]
    for verdict in found:
        yield _result(facts, verdict, word)
    if not found:
        yield Result("PASS", f"has no {word} in its kernel log")


def _result(facts: Facts, verdict: Verdict, word: str) -> Result:
    event = verdict.event
    gpu = gpu_at(facts, event.bus)
    where = f"GPU {gpu.index}" if gpu else event.bus
    times = f", {event.count} times" if event.count > 1 else ""
    note = f" ({verdict.note})" if verdict.note else ""
    return Result(
        "FAIL" if verdict.failed else "WARN",
        f"had {word} {event.number} on {where}{times}{note}: {event.text[:100]}",
        rule=verdict.rule, gpu=_name(facts, event), time=event.time,
    )  # fmt: skip


def _name(facts: Facts, event: Event) -> Optional[str]:
    gpu = gpu_at(facts, event.bus)
    return gpu.name if gpu else event.bus


def _readable(facts: Facts, seen: Faults) -> bool:
    return not without_gpus(facts) and seen.log.lines is not None


def _not_read(facts: Facts, seen: Faults) -> Result:
    if without_gpus(facts):
        return Result("SKIP", "has no GPUs by its profile")
    if seen.log.denied:
        return Result("SKIP", "shows its kernel log to root only")
    return Result("UNKNOWN", seen.log.why)
