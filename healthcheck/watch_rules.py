"""What the watch does next with a node: a pure function of what Slurm and the record say.

Everything that acts is decided twice, on a node read again in between, so a reason that somebody
changed meanwhile stops it. The phases are in watch_records.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Optional

from healthcheck import orders
from healthcheck import reason as reasons
from healthcheck.drain import TRANSITIONAL
from healthcheck.orders import FAIL_STATES, Verb
from healthcheck.watch_budget import Budget
from healthcheck.watch_records import MOST_FAILURES, PASSES, Record, did_not_help, enter
from muster import slurm
from muster.site import Site
from muster.slurm import Node

Kind = Literal[
    "none", "wait", "forget", "drain", "replace", "reboot", "verify", "resume", "returned",
    "give_up",
]  # fmt: skip

RETURN_S = 120.0  # how long a node may take to answer again after it was returned
_BOOT_SLACK_S = 2.0  # Slurm computes the boot time from an uptime in whole seconds
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


@dataclass(frozen=True)
class Action:
    """What to do, why, and the record that must be on disk before it is done (None: forget)."""

    kind: Kind
    why: str
    record: Optional[Record] = None


@dataclass(frozen=True)
class _Case:
    """A node that muster drained or a person ordered, and all that decides but the record."""

    node: Node
    check: str
    wanted: str  # the action that its reason asks for
    ordered: bool  # by a person
    site: Site
    now: float
    budget: Budget


def boot_time(node: Node) -> Optional[float]:
    """Unix time of the boot that Slurm knows; None while it knows none."""
    return slurm.unix_time(node.boot_time)


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
    if site.hyperpod_repairs:
        return _forget(record, "HyperPod repairs it")
    order = orders.read(node)
    if node.states & (TRANSITIONAL - FAIL_STATES if order else TRANSITIONAL):
        return _wait(record, "its state is " + "+".join(sorted(node.states)))
    if order:
        return _drained(_Case(node, "an order", order, True, site, now, budget), record)
    if "DRAIN" not in node.states:
        return _in_service(node, record, site, now, budget)
    ours = reasons.read(node.reason)
    if ours is None:
        return _forget(record, "somebody else drained it")
    return _drained(_Case(node, ours.check, ours.action, False, site, now, budget), record)


def _in_service(
    node: Node, record: Optional[Record], site: Site, now: float, budget: Budget
) -> Action:
    if record and record.phase == "returning" and not node.states & {"DOWN", "ERROR"}:
        return _returning(node, record, now)
    if _lost(node, budget):
        return _silent(node, record, site, now, budget)
    return _forget(record, "it is not drained by muster any more")


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
    if case.wanted in ("none", "drain"):
        return _wait(record, "a person decides: its reason asks for nothing else")
    if record.failures >= MOST_FAILURES:
        why = f"{record.failures} attempts failed; look at it, then undrain it by hand"
        return Action("give_up", why, enter(record, "gave_up", case.now))
    verb, why = _cure(case, record)
    why_not = _held_back(case, record, verb)
    if why_not:
        return _wait(record, why_not)
    acting = replace(
        enter(record, "acting", case.now),
        verb=verb,
        acted_at=case.now,
        boot_before=boot_time(case.node),
        boot_id=None,
        verifies=0,
        passes=0,
    )
    return Action(verb, why, acting)


def _cure(case: _Case, record: Record) -> tuple[Verb, str]:
    """What to do, and why: what the reason asks for, and more where a reboot did not help.

    A person who ordered a reboot gets no replacement: it would destroy the node's disks.
    """
    why = f"drained for {case.check}" if not case.ordered else f"by order: {case.node.reason}"
    if case.wanted == "replace":
        return "replace", why
    if record.reboots and case.site.replace_command and not case.ordered:
        return "replace", f"{why}; a reboot did not help"
    return "reboot", why


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
    if case.budget.alike and not case.ordered:
        return case.budget.alike
    return None


def _booted(node: Node, record: Record, site: Site, now: float) -> Action:
    acted_at = record.acted_at if record.acted_at is not None else record.since
    ready = _new_boot(node, record, acted_at) and "NOT_RESPONDING" not in node.states
    if not ready:
        if now - acted_at > site.replace_timeout_s:
            why = f"no new boot within {site.replace_timeout_s:.0f} s"
            return Action("wait", why, did_not_help(record, now))
        return _wait(replace(record, phase="booting"), "it has not come back with a new boot yet")
    if record.phase == "verified":
        return Action("resume", "verified", enter(record, "returning", now))
    if not site.verify_command:
        return _wait(record, "the site file has no verify_command; look at it and undrain it")
    if now < record.not_before:
        what = f"{record.verifies} failed verifications" if record.verifies else "a verification"
        return _wait(record, f"a pause after {what}")
    why = f"it has a new boot; {record.passes} of {PASSES} verifications passed"
    return Action("verify", why, enter(record, "verifying", now))


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
    if budget.alike:
        return _wait(record, budget.alike)
    if budget.drain_left <= 0:
        return _wait(record, "muster has drained as many nodes as it may: is it the network?")
    return Action("drain", f"Slurm says since {now - record.since:.0f} s: {said}", record)


def _wait(record: Optional[Record], why: str) -> Action:
    return Action("wait" if record else "none", why, record)


def _forget(record: Optional[Record], why: str) -> Action:
    return Action("forget" if record else "none", why)
