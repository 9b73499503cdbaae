"""When Slurm has lost count of GPUs, and whether to let it count anew: pure functions.

Slurm 22.05 keeps a job's GPUs as used when the job has lost a node under --no-kill and is requeued
several times within seconds: the nodes are idle, `GresUsed` is not 0, and every job that wants
these GPUs waits with the reason Resources until `scontrol reconfigure`, or for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from healthcheck.job_queue import Entry

SURE_AFTER_S = 30.0  # seen so long at two looks or more: no node passes through this state
PAUSE_S = 300.0  # between two recounts
_DAY_S = 86400.0
_COUNT = re.compile(r"(?:^|,)[a-z_][\w:.-]*?:(\d+)(?=\(|,|$)", re.IGNORECASE)
_FREE = frozenset({"IDLE", "PLANNED"})
_BY_HAND = "run 'scontrol reconfigure' yourself"


@dataclass(frozen=True)
class GresUse:
    """What Slurm's record of one node says."""

    states: frozenset[str]
    used: int  # devices of all kinds


@dataclass(frozen=True)
class Recounts:
    """What must be remembered; all times are Unix times."""

    seen: Mapping[str, float] = field(default_factory=dict)  # node -> since when, at every look
    done_at: tuple[float, ...] = ()  # recounts of the last day


@dataclass(frozen=True)
class RecountAction:
    """What to do, why, and what to remember (on disk before it is done)."""

    kind: Literal["none", "wait", "recount"]
    why: str
    record: Recounts


def devices(gres_used: str) -> int:
    """The number of devices in a GresUsed such as `gpu:h100:8(IDX:0-7),nic:0`."""
    return sum(map(int, _COUNT.findall(re.sub(r"\([^)]*\)", "", gres_used))))


def waits_for_resources(queue: Iterable[Entry]) -> bool:
    """Whether a job waits that may be waiting for what is not really used."""
    return any(entry.state == "PENDING" and entry.reason == "Resources" for entry in queue)


def leaked(nodes: Mapping[str, GresUse]) -> list[str]:
    """Nodes that no job has and whose devices count as used all the same."""
    return sorted(n for n, use in nodes.items() if use.used > 0 and use.states <= _FREE)


def next_recount(
    waiting: bool,
    nodes: Mapping[str, GresUse],
    record: Recounts,
    *,
    per_day: int,
    edited: Sequence[str],
    now: float,
) -> RecountAction:
    """The next action.

    Args:
        waiting: some job waits for resources.
        nodes: by name.
        record: of the last look.
        per_day: the most recounts in 24 hours; 0: none.
        edited: Slurm's files that are newer than slurmctld's start; to read them in is for a
            person.
        now: Unix time.
    """
    today = tuple(at for at in record.done_at if now - at < _DAY_S)
    bad = leaked(nodes) if waiting else []
    record = Recounts({name: record.seen.get(name, now) for name in bad}, today)
    sure = [name for name, since in record.seen.items() if now - since >= SURE_AFTER_S]
    if not sure:
        return RecountAction("none", "no GPU of an idle node counts as used", record)
    why = f"jobs wait for resources, and devices of {len(sure)} idle nodes count as used: "
    why += ", ".join(sure[:8]) + (", ..." if len(sure) > 8 else "")
    if edited:
        names = ", ".join(edited[:3])
        why += f"; slurmctld has not read {names} since the change: look at it, then {_BY_HAND}"
        return RecountAction("wait", why, record)
    if len(today) >= per_day:
        why += f"; {len(today)} recounts in a day are enough: {_BY_HAND}"
        return RecountAction("wait", why, record)
    if today and now - today[-1] < PAUSE_S:
        why += f"; the last recount is less than {PAUSE_S:.0f} s ago"
        return RecountAction("wait", why, record)
    return RecountAction("recount", why, Recounts({}, (*today, now)))
