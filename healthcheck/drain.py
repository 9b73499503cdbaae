"""Drain this node, guarded: never over somebody else's reason, never too many, never blindly.

A health check runs on every node at once, so a bad release of it, or a shared cause, would drain a
whole cluster within a minute. Therefore a budget per partition, counted again after the drain: who
came too late gives the node back. When Slurm does not answer nothing is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Optional

from healthcheck import reason as reasons
from healthcheck.action_log import ActionLog
from healthcheck.finding import Finding
from muster import slurm
from muster.errors import MusterError, UnavailableError
from muster.process import run
from muster.slurm import Node

UPDATE_TIMEOUT_S = 10.0
# Somebody, or Slurm itself, is already doing something with such a node.
TRANSITIONAL = frozenset(
    ("MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED",
     "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "FUTURE",
     "FAIL", "FAILING")
)  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """`drain` with the reason, or why not; `keep` is no refusal, there is nothing left to do."""

    kind: Literal["drain", "keep", "refuse"]
    why: str


def limit(count: int, fraction: float) -> int:
    """How many of `count` nodes may be out of service because of muster: at least one."""
    return max(1, math.floor(count * fraction))


def decide(finding: Finding, boot: Optional[str], nodes: Mapping[str, Node], name: str,
           fraction: float) -> Decision:  # fmt: skip
    """What to do about a failed check on node `name`, given all nodes as Slurm knows them."""
    node = nodes.get(name)
    if node is None:
        return Decision("refuse", f"Slurm knows no node {name}")
    if node.states & TRANSITIONAL:
        return Decision("refuse", "its state is " + "+".join(sorted(node.states)))
    if node.closed or node.lost or node.reason not in ("", "none"):
        if node.closed and reasons.read(node.reason):
            return Decision("keep", node.reason)
        if node.closed or node.lost:
            return Decision("refuse", f"it is out of service already: {node.reason or 'no reason'}")
    full = _full_partition(node, nodes, fraction)
    if full:
        return Decision("refuse", f"partition {full} has as many nodes drained as it may")
    text = reasons.Reason(finding.check, finding.class_, finding.action, finding.detail, boot)
    return Decision("drain", reasons.write(text))


def too_late(name: str, nodes: Mapping[str, Node], fraction: float) -> bool:
    """Whether more nodes are drained than may be, and others were first (by name)."""
    for partition in nodes[name].partitions:
        members = [n for n in nodes.values() if partition in n.partitions]
        ours = sorted(n.name for n in members if _ours(n))
        if ours.index(name) >= limit(len(members), fraction):
            return True
    return False


def act(finding: Finding, boot: Optional[str], name: str, fraction: float,
        log: ActionLog, *, dry_run: bool) -> Optional[str]:  # fmt: skip
    """Drain node `name` for this finding if the rules allow it; returns a line for people."""
    try:
        decision = decide(finding, boot, slurm.show_nodes(), name, fraction)
        if decision.kind == "drain" and not dry_run:
            update(name, "drain", decision.why)
            log.write("drained", name, decision.why)
            return f"node {name} is drained: {decision.why}" + _withdraw(
                name, decision.why, fraction, log
            )
    except MusterError as error:
        log.write_once("refused", name, f"not drained: {error}")
        return f"node {name} is not drained: {error}"
    if decision.kind == "drain":
        return f"node {name} would be drained: {decision.why}"
    if decision.kind == "refuse":
        log.write_once("refused", name, f"not drained: {decision.why}", check=finding.check)
        return f"node {name} is not drained: {decision.why}"
    return None


def update(name: str, state: Literal["drain", "resume"], reason: Optional[str] = None) -> None:
    """One `scontrol update`.

    Raises:
        UnavailableError: Slurm refused or does not answer.
    """
    words = [f"nodename={name}", f"state={state}", *([f"reason={reason}"] if reason else [])]
    done = run(["scontrol", "update", *words], timeout_s=UPDATE_TIMEOUT_S)
    if not done.ok:
        raise UnavailableError(
            f"scontrol update nodename={name} state={state}", done.reason, "see 'scontrol ping'"
        )


def _withdraw(name: str, reason: str, fraction: float, log: ActionLog) -> str:
    """Give the node back if others were drained at the same moment and the budget is exceeded."""
    nodes = slurm.show_nodes()
    node = nodes.get(name)
    if node is None or node.reason != reason or not too_late(name, nodes, fraction):
        return ""
    update(name, "resume")
    log.write("withdrawn", name, "more nodes than allowed were drained at the same moment")
    return ", and given back: more nodes than allowed were drained at the same moment"


def _ours(node: Node) -> bool:
    return "DRAIN" in node.states and reasons.read(node.reason) is not None


def _full_partition(node: Node, nodes: Mapping[str, Node], fraction: float) -> Optional[str]:
    for partition in node.partitions:
        members: Sequence[Node] = [n for n in nodes.values() if partition in n.partitions]
        if sum(map(_ours, members)) >= limit(len(members), fraction):
            return partition
    return None
