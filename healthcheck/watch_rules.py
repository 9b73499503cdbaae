"""What `muster watch` does about one node next: a pure function of what Slurm and the record say.

    silent -> drained -> acting -> booting -> verifying -> verified -> returning -> (forgotten)
                 ^                    |           |
                 +--- failed, later --+-----------+        three failures: gave_up

Everything that acts is decided twice, on a node read again in between, so a reason that somebody
changed meanwhile stops it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Optional

from healthcheck import reason as reasons
from healthcheck.drain import TRANSITIONAL, limit
from muster.site import Site
from muster.slurm import Node

Phase = Literal[
    "silent", "drained", "acting", "booting", "verifying", "verified", "returning", "gave_up"
]
Verb = Literal["replace", "reboot"]
Kind = Literal[
    "none", "wait", "forget", "drain", "replace", "reboot", "verify", "resume", "returned",
    "give_up",
]  # fmt: skip

LOST_REASON = "muster:lost_node:hardware:replace"
MOST_FAILURES = 3
MOST_VERIFIES = 3
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
RETURN_S = 120.0  # how long a node may take to answer again after it was returned
_BOOT_SLACK_S = 2.0  # Slurm computes the boot time from an uptime in whole seconds
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_UNDERWAY = frozenset({"acting", "booting", "verifying", "verified", "returning"})


@dataclass(frozen=True)
class Record:
    """What the watch knows about one node; kept in the state file."""

    phase: Phase
    since: float  # of this phase
    began: float  # of the whole case
    reason: str
    boot_before: Optional[float] = None
    acted_at: Optional[float] = None
    failures: int = 0
    verifies: int = 0
    not_before: float = 0.0
    said: str = ""  # the last thing that was logged while waiting


@dataclass(frozen=True)
class Action:
    """What to do, why, and the record that must be on disk before it is done (None: forget)."""

    kind: Kind
    why: str
    record: Optional[Record] = None


@dataclass(frozen=True)
class _Case:
    """A node that muster drained, and all that decides about it but the record."""

    node: Node
    ours: reasons.Reason
    site: Site
    now: float
    budget: Budget


@dataclass(frozen=True)
class Budget:
    """How many more nodes of this node's partitions may be acted on now."""

    left: int
    drain_left: int = 1  # how many more may be drained: many lost at once have a shared cause
    slurm_users: frozenset[str] = frozenset({"root", "slurm"})


def boot_time(node: Node) -> Optional[float]:
    """Unix time of the boot that Slurm knows; None while it knows none."""
    try:
        return time.mktime(time.strptime(node.boot_time, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


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
        drained = [n for n in members if "DRAIN" in n.states and reasons.read(n.reason)]
        left.append(limit(len(members), fraction) - len(drained))
    return min(left)


def next_action(
    node: Node, record: Optional[Record], site: Site, now: float, budget: Budget
) -> Action:
    """The next action for a node.

    Args:
        node: as Slurm knows it now.
        record: what the watch knows; None: nothing.
        site: commands and time limits.
        now: Unix time.
        budget: what may be started.
    """
    if node.states & TRANSITIONAL:
        return _wait(record, "its state is " + "+".join(sorted(node.states)))
    ours = reasons.read(node.reason)
    if "DRAIN" in node.states:
        if ours is None:
            return _forget(record, "somebody else drained it")
        return _drained(_Case(node, ours, site, now, budget), record)
    if record and record.phase == "returning" and not node.states & {"DOWN", "ERROR"}:
        return _returning(node, record, now)
    if _lost(node, budget):
        return _silent(node, record, site, now, budget)
    return _forget(record, "it is not drained by muster any more")


def after_command(record: Record, problem: Optional[str], now: float) -> Record:
    """The record after replace or reboot ended; `problem` None: accepted."""
    return _enter(record, "booting", now) if problem is None else _failed(record, now)


def after_verify(record: Record, problem: Optional[str], now: float) -> Record:
    """The record after the verify command ended: verified, tried again later, or a failure."""
    if problem is None:
        return _enter(record, "verified", now)
    verifies = record.verifies + 1
    if verifies >= MOST_VERIFIES:
        return _failed(record, now)
    waiting = _enter(record, "booting", now)
    return replace(waiting, verifies=verifies, not_before=now + _pause(verifies))


def after_restart(record: Record) -> Record:
    """The record of a watch that starts again.

    A command whose end nobody saw counts as given, so that nothing is replaced twice; a new boot
    will show, or its absence.
    """
    if record.phase in ("acting", "verifying", "verified"):
        return replace(record, phase="booting")
    return record


def _drained(case: _Case, record: Optional[Record]) -> Action:
    text = case.node.reason
    if record is None or record.phase in ("silent", "returning") or (
        record.reason != text and record.phase in ("drained", "gave_up")
    ):  # fmt: skip
        began = record.began if record and record.phase == "silent" else case.now
        record = Record("drained", since=case.now, began=began, reason=text)
    record = replace(record, reason=text)
    if record.phase == "drained":
        return _may_act(case, record)
    if record.phase in ("booting", "verified"):
        return _booted(case.node, record, case.site, case.now)
    return Action("wait", record.said, record)  # acting, verifying, or given up: nothing new


def _may_act(case: _Case, record: Record) -> Action:
    if case.ours.action in ("none", "drain"):
        return _wait(record, "a person decides: its reason asks for nothing else")
    if record.failures >= MOST_FAILURES:
        why = f"{record.failures} attempts failed; look at it, then undrain it by hand"
        return Action("give_up", why, _enter(record, "gave_up", case.now))
    verb: Verb = "replace" if case.ours.action == "replace" else "reboot"
    why_not = _held_back(case, record, verb)
    if why_not:
        return _wait(record, why_not)
    acting = replace(
        _enter(record, "acting", case.now),
        acted_at=case.now,
        boot_before=boot_time(case.node),
        verifies=0,
    )
    return Action(verb, f"drained for {case.ours.check}", acting)


def _held_back(case: _Case, record: Record, verb: Verb) -> Optional[str]:
    site, states = case.site, case.node.states
    if not (site.replace_command if verb == "replace" else site.reboot_command):
        return f"the site file has no {verb}_command"
    if case.now < record.not_before:
        return f"a pause after failure {record.failures}"
    if "DOWN" not in states and states & _BUSY:
        return "a job runs on it"
    if case.budget.left <= 0:
        return "as many nodes are under way as the budget allows"
    return None


def _booted(node: Node, record: Record, site: Site, now: float) -> Action:
    acted_at = record.acted_at if record.acted_at is not None else record.since
    ready = _new_boot(node, record, acted_at) and "NOT_RESPONDING" not in node.states
    if not ready:
        if now - acted_at > site.replace_timeout_s:
            why = f"no new boot within {site.replace_timeout_s:.0f} s"
            return Action("wait", why, _failed(record, now))
        return _wait(replace(record, phase="booting"), "it has not come back with a new boot yet")
    if record.phase == "verified":
        return Action("resume", "verified", _enter(record, "returning", now))
    if not site.verify_command:
        return _wait(record, "the site file has no verify_command; look at it and undrain it")
    if now < record.not_before:
        return _wait(record, f"a pause after {record.verifies} failed verifications")
    return Action("verify", "it has a new boot", _enter(record, "verifying", now))


def _new_boot(node: Node, record: Record, acted_at: float) -> bool:
    """Whether the node booted after the command was given.

    Boot times are on the controller's clock: Slurm takes its own time less the node's uptime.
    """
    booted = boot_time(node)
    if booted is None or booted < acted_at - _BOOT_SLACK_S:
        return False
    return booted != record.boot_before


def _returning(node: Node, record: Record, now: float) -> Action:
    if "NOT_RESPONDING" not in node.states:
        return Action("returned", f"back in service after {now - record.began:.0f} s")
    if now - record.since > RETURN_S:
        return Action("forget", "it was returned and does not answer")
    return _wait(record, "it was returned and has not answered yet")


def _lost(node: Node, budget: Budget) -> bool:
    return "DOWN" in node.states and reasons.is_slurms(
        node.reason, node.reason_user, budget.slurm_users
    )


def _silent(node: Node, record: Optional[Record], site: Site, now: float, budget: Budget) -> Action:
    if record is None or record.phase != "silent":
        record = Record("silent", since=now, began=now, reason=node.reason)
    said = node.reason or "down without a reason"
    if now - record.since <= site.lost_after_s:
        return _wait(record, f"Slurm says: {said}")
    if budget.drain_left <= 0:
        return _wait(record, "muster has drained as many nodes as it may: is it the network?")
    return Action("drain", f"Slurm says since {now - record.since:.0f} s: {said}", record)


def _failed(record: Record, now: float) -> Record:
    failures = record.failures + 1
    again = _enter(record, "drained", now)
    return replace(again, failures=failures, verifies=0, not_before=now + _pause(failures))


def _pause(count: int) -> float:
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 4 ** (count - 1)))


def _enter(record: Record, phase: Phase, now: float) -> Record:
    return replace(record, phase=phase, since=now, said="")


def _wait(record: Optional[Record], why: str) -> Action:
    return Action("wait" if record else "none", why, record)


def _forget(record: Optional[Record], why: str) -> Action:
    return Action("forget" if record else "none", why)
