"""How many nodes `muster watch` may touch now: a budget per partition, a pause when many fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from healthcheck import reason as reasons
from healthcheck.drain import limit, taken_out
from healthcheck.suspect import SHARED_BY, shared_cause
from healthcheck.watch_records import LOST_REASON, Record
from muster.slurm import Node

_UNDERWAY = frozenset({"acting", "booting", "verifying", "verified", "returning"})
_UNTOUCHED = frozenset({"silent", "drained"})


@dataclass(frozen=True)
class Budget:
    """What may be done to a node now, as far as the other nodes are concerned."""

    left: int  # how many more nodes of its partitions may be acted on
    drain_left: int = 1  # how many more may be drained: many lost at once have a shared cause
    alike: Optional[str] = None  # why it is left alone for a while: others fail like it
    slurm_users: frozenset[str] = frozenset({"root", "slurm"})


def budget_left(
    node: Node, nodes: Mapping[str, Node], records: Mapping[str, Record], fraction: float
) -> int:
    """The smallest budget of the node's partitions, less what is under way in each."""
    left = [limit(1, fraction)] if not node.partitions else []
    for partition in node.partitions:
        members = [name for name, n in nodes.items() if partition in n.partitions]
        busy = sum(1 for m in members if m in records and records[m].phase in _UNDERWAY)
        left.append(limit(len(members), fraction) - busy)
    return min(left)


def drains_left(node: Node, nodes: Mapping[str, Node], fraction: float) -> int:
    """The smallest limit of the node's partitions, less what muster has drained in each."""
    left = [limit(1, fraction)] if not node.partitions else []
    for partition in node.partitions:
        members = [n for n in nodes.values() if partition in n.partitions]
        left.append(limit(len(members), fraction) - sum(map(taken_out, members)))
    return min(left)


def failing_alike(
    name: str, records: Mapping[str, Record], within_s: float, now: float
) -> Optional[str]:
    """Why node `name` is left alone: three nodes began to fail alike a short while ago."""
    trouble = _trouble(records[name]) if name in records else None
    if trouble is None:
        return None
    alike = {n: r.began for n, r in records.items() if _trouble(r) == trouble}
    if not shared_cause(alike.items(), within_s) or now - max(alike.values()) > within_s:
        return None
    names = ", ".join(sorted(alike)[:SHARED_BY])
    return (
        f"{len(alike)} nodes show {trouble} at the same time ({names}): is it the infrastructure?"
    )


def _trouble(record: Record) -> Optional[str]:
    """What is wrong with a node that nothing was done to yet."""
    if record.phase not in _UNTOUCHED:
        return None
    ours = reasons.read(record.reason)
    if record.phase == "silent" or record.reason == LOST_REASON:
        return "silence"
    return ours.check if ours else None
