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

from healthcheck import orders
from healthcheck import reason as reasons
from healthcheck.action_log import ActionLog
from healthcheck.finding import Finding
from muster import slurm
from muster.errors import MusterError, UnavailableError
from muster.process import run
from muster.site import Site
from muster.slurm import Node

UPDATE_TIMEOUT_S = 10.0
# Somebody, or Slurm itself, is already doing something with such a node.
TRANSITIONAL = frozenset(
    ("MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED",
     "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "FUTURE",
     "FAIL", "FAILING")
)  # fmt: skip


State = Literal["drain", "fail", "resume"]


@dataclass(frozen=True)
class Decision:
    """`drain` with state and reason, or why not.

    keep: no refusal, there is nothing left to do. full: too many nodes are drained already.
    """

    kind: Literal["drain", "keep", "refuse", "full"]
    why: str
    state: State = "drain"


@dataclass(frozen=True)
class Outcome:
    """What was done, and a line for people."""

    kind: Literal["drained", "withdrawn", "would", "kept", "refused", "full"]
    said: Optional[str] = None


def limit(count: int, fraction: float) -> int:
    """How many of `count` nodes may be out of service because of muster: at least one."""
    return max(1, math.floor(count * fraction))


def decide(
    finding: Finding, boot: Optional[str], nodes: Mapping[str, Node], name: str, site: Site
) -> Decision:
    """What to do about a failed check on node `name`, given all nodes as Slurm knows them."""
    node = nodes.get(name)
    if node is None:
        return Decision("refuse", f"Slurm knows no node {name}")
    if taken_out(node):
        return Decision("keep", node.reason)
    others = _in_other_hands(node)
    if others:
        return Decision("refuse", others)
    full = _full_partition(node, nodes, site.max_unfit_fraction)
    if full:
        return Decision("full", f"partition {full} has as many nodes drained as it may")
    state, text = wording(finding, boot, site)
    return Decision("drain", text, state)


def wording(finding: Finding, boot: Optional[str], site: Site) -> tuple[State, str]:
    """State and reason for a finding: ours, or on HyperPod the words that its agent acts on."""
    order = orders.text(finding.action) if site.hyperpod_repairs else None
    if order:
        return "fail", order
    text = reasons.Reason(finding.check, finding.class_, finding.action, finding.detail, boot)
    return "drain", reasons.write(text)


def _in_other_hands(node: Node) -> Optional[str]:
    if node.states & TRANSITIONAL:
        return "its state is " + "+".join(sorted(node.states))
    if node.closed or node.lost:
        return f"it is out of service already: {node.reason or 'no reason'}"
    return None


def too_late(name: str, nodes: Mapping[str, Node], fraction: float) -> bool:
    """Whether more nodes are drained than may be, and others were first (by name)."""
    for partition in nodes[name].partitions:
        members = [n for n in nodes.values() if partition in n.partitions]
        ours = sorted(n.name for n in members if taken_out(n))
        if ours.index(name) >= limit(len(members), fraction):
            return True
    return False


def act(
    finding: Finding, boot: Optional[str], name: str, site: Site, log: ActionLog, *, dry_run: bool
) -> Outcome:
    """Drain node `name` for this finding if the rules allow it."""
    try:
        decision = decide(finding, boot, slurm.show_nodes(), name, site)
        if decision.kind == "drain" and not dry_run:
            return _drain(finding, decision, name, site, log)
    except MusterError as error:
        log.write_once("refused", name, f"not drained: {error}")
        return Outcome("refused", f"node {name} is not drained: {error}")
    if decision.kind == "drain":
        return Outcome("would", f"node {name} would be drained: {decision.why}")
    if decision.kind == "keep":
        return Outcome("kept")
    log.write_once("refused", name, f"not drained: {decision.why}", check=finding.check)
    kind: Literal["full", "refused"] = "full" if decision.kind == "full" else "refused"
    return Outcome(kind, f"node {name} is not drained: {decision.why}")


def _drain(finding: Finding, decision: Decision, name: str, site: Site, log: ActionLog) -> Outcome:
    """Drain, and give the node back if others were drained at the same moment beyond the budget."""
    update(name, decision.state, decision.why)
    log.write("drained", name, decision.why, check=finding.check, detail=finding.detail)
    said = f"node {name} is drained: {decision.why}"
    nodes = slurm.show_nodes()
    node = nodes.get(name)
    if node is None or node.reason != decision.why:
        return Outcome("drained", said)
    if not too_late(name, nodes, site.max_unfit_fraction):
        return Outcome("drained", said)
    update(name, "resume")
    why = "more nodes than allowed were drained at the same moment"
    log.write("withdrawn", name, why)
    return Outcome("withdrawn", f"{said}, and given back: {why}")


def update(name: str, state: State, reason: Optional[str] = None) -> None:
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


def taken_out(node: Node) -> bool:
    """Whether the node is out of service because of muster, or by order of a person."""
    ours = "DRAIN" in node.states and reasons.read(node.reason) is not None
    return ours or orders.read(node) is not None


def _full_partition(node: Node, nodes: Mapping[str, Node], fraction: float) -> Optional[str]:
    for partition in node.partitions:
        members: Sequence[Node] = [n for n in nodes.values() if partition in n.partitions]
        if sum(map(taken_out, members)) >= limit(len(members), fraction):
            return partition
    return None
