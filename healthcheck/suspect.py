"""Which node of a failed job is at fault? One pure function over the findings of all its nodes.

A node that breaks makes noise everywhere: its peers lose connections, their programs crash, their
kernels clean up. So consequences are taken out first, what three nodes show alike is nobody's own
fault, and of what is left the earliest by the kernel's clock is the cause.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional

from healthcheck.finding import Action, Class, Finding, plain, read_finding

SHARED_BY = 3
"""So many nodes with the same fault at the same time share its cause: switch, power, storage."""
SAME_TIME_S = 300.0
FOLLOWS_S = 30.0
MOST_EVIDENCE = 5

_NO_ANSWER = "no answer"

Verdict = Literal["hardware", "software", "infrastructure", "unknown"]

ACTIONS: tuple[Action, ...] = ("replace", "reboot", "reset", "drain", "none")
"""Worst first."""

_CLEAN_UP = "xid.45"  # says that a program was ended, whatever ended it
# The program's own Xids follow when its GPU dies under it.
_FOLLOWERS = frozenset({"xid.13", "xid.31", "xid.43"})
_LEADERS = frozenset({"xid.48", "xid.74", "xid.79", "xid.95", "xid.119", "xid.120", "xid.140"})
_OFF_THE_BUS = "xid.79"  # the switch then loses the link to it


@dataclass(frozen=True)
class Suspect:
    """Who is to blame, and why.

    Attributes:
        verdict: hardware: `node` is at fault, take another. software: the program is, `node` is
            where it showed. infrastructure: what several nodes share is; wait, blame nobody.
            unknown: nothing was found.
        node: see verdict; None: no single one.
        action: what `node` needs.
        why: one line for people.
        evidence: at most five lines, the cause first.
        also: further nodes with a fault of their own.
    """

    verdict: Verdict
    node: Optional[str]
    action: Action
    why: str
    evidence: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The last line of `muster check --suspect --json`."""
        return {
            "verdict": self.verdict,
            "node": self.node,
            "action": self.action,
            "why": self.why,
            "evidence": list(self.evidence),
            "also": list(self.also),
        }


@dataclass(frozen=True)
class _Fault:
    """One finding that speaks against a node; a node without an answer has one too."""

    node: str
    rule: str
    class_: Class
    detail: str
    action: Action
    time: Optional[float] = None

    @property
    def said(self) -> str:
        clock = time.strftime(" at %H:%M:%S", time.localtime(self.time)) if self.time else ""
        return plain(f"node {self.node} {self.detail}{clock}", 300)


def judge(reports: Mapping[str, Optional[Sequence[Finding]]]) -> Suspect:
    """Who is to blame, given what `muster check --when suspect` found on every node of the job.

    Args:
        reports: findings by node, in the job's order; None: that node gave no answer in time.
    """
    causes = {node: _causes(found or ()) for node, found in reports.items()}
    own = [fault for node, found in causes.items() for fault in _faults(node, found, _is_hard)]
    silent = [
        _Fault(node, _NO_ANSWER, "network", "gave no answer in time", "none")
        for node, found in reports.items()
        if found is None
    ]
    shared = _shared([*own, *silent], len(reports))
    single = [fault for fault in [*own, *silent] if fault.rule not in {s.rule for s in shared}]
    if shared and not any(_before(fault, shared) for fault in single):
        return _infrastructure(shared)
    soft = [fault for node, found in causes.items() for fault in _faults(node, found, _is_soft)]
    common = {fault.rule for fault in _shared(soft, len(reports))}
    faults = [*sorted(single, key=_first), *(f for f in soft if f.rule not in common)]
    if faults:
        return _hardware(faults)
    programs = [fault for node, found in causes.items() for fault in _faults(node, found, _is_app)]
    if programs:
        return _software(sorted(programs, key=_first))
    return Suspect("unknown", None, "none", "no node shows a fault", _hints(reports))


def read_findings(text: str) -> Optional[list[Finding]]:
    """Findings from the output of `muster check --json`; None: it did not come to its end."""
    findings, ended = [], False
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            ended = ended or isinstance(value.get("fit"), bool)
            finding = read_finding(value)
            if finding is not None:
                findings.append(finding)
    return findings if ended else None


# -- what counts against a node ------------------------------------------------------------------


def _is_app(finding: Finding) -> bool:
    """The kernel tells of a crash of the program: an Xid of its making, a segfault, no memory."""
    return (
        finding.status in ("WARN", "FAIL")
        and finding.class_ == "software"
        and finding.action == "none"
        and finding.time is not None
    )


def _is_hard(finding: Finding) -> bool:
    return finding.status == "FAIL" and finding.class_ in ("hardware", "network", "storage")


def _is_soft(finding: Finding) -> bool:
    """The node is not as it should be, which may or may not be why the job failed."""
    return finding.status == "FAIL" and not _is_hard(finding) and not _is_app(finding)


def _faults(node: str, findings: Iterable[Finding], kind: Any) -> list[_Fault]:
    return [
        _Fault(node, f.rule or f.check, f.class_, f"{f.detail} ({f.check})", f.action, f.time)
        for f in findings
        if kind(f)
    ]


def _causes(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of one node without those that follow from another one."""
    leaders = [f for f in findings if f.rule in _LEADERS and f.status in ("WARN", "FAIL")]
    lost_at = [f.time for f in leaders if f.rule == _OFF_THE_BUS and f.time is not None]
    return [f for f in findings if not _follows(f, leaders, lost_at)]


def _follows(finding: Finding, leaders: Sequence[Finding], lost_at: Sequence[float]) -> bool:
    if finding.rule == _CLEAN_UP:
        return True
    if finding.rule in _FOLLOWERS:
        return any(
            lead.time is None or finding.time is None or lead.time <= finding.time
            for lead in leaders
        )
    if finding.rule.startswith("sxid.") and finding.time is not None:
        return any(lost <= finding.time <= lost + FOLLOWS_S for lost in lost_at)
    return False


# -- what several nodes show alike ---------------------------------------------------------------


def _shared(faults: Sequence[_Fault], num_nodes: int) -> list[_Fault]:
    """Faults of one rule at the same time on three nodes; or on both of two, unless hardware."""
    found = []
    for rule in dict.fromkeys(fault.rule for fault in faults):
        alike = [fault for fault in faults if fault.rule == rule]
        both = num_nodes == 2 and alike[0].class_ != "hardware"
        if shared_cause([(f.node, f.time) for f in alike], SAME_TIME_S, 2 if both else SHARED_BY):
            found += alike
    return found


def shared_cause(
    seen: Iterable[tuple[str, Optional[float]]], within_s: float, count: int = SHARED_BY
) -> bool:
    """Whether `count` nodes saw the same within `within_s` seconds; no time: at any time.

    Args:
        seen: (node, Unix time or None), several per node are allowed.
        within_s: at most so far apart.
        count: number of different nodes.
    """
    everything = list(seen)
    timeless = {node for node, when in everything if when is None}
    timed = sorted((when, node) for node, when in everything if when is not None)
    groups = [
        {node for when, node in timed if first <= when <= first + within_s} for first, _ in timed
    ] or [set()]
    return max(len(group | timeless) for group in groups) >= count


def _before(fault: _Fault, shared: Sequence[_Fault]) -> bool:
    """Whether this fault of one node comes before what several nodes share, so may be its cause."""
    if fault.rule == _NO_ANSWER:
        return False
    times = [other.time for other in shared if other.time is not None]
    return fault.time is None or not times or fault.time <= min(times)


# -- verdicts ------------------------------------------------------------------------------------


def _first(fault: _Fault) -> tuple[bool, float]:
    """Sorting key: by the kernel's time, then those without one, as they came."""
    return fault.time is None, fault.time if fault.time is not None else 0.0


def _hardware(faults: Sequence[_Fault]) -> Suspect:
    node = faults[0].node
    mine = [fault for fault in faults if fault.node == node]
    action = min((fault.action for fault in mine), key=ACTIONS.index)
    others = tuple(dict.fromkeys(fault.node for fault in faults if fault.node != node))
    return Suspect("hardware", node, action, faults[0].said, _evidence([*mine, *faults]), others)


def _infrastructure(shared: Sequence[_Fault]) -> Suspect:
    nodes = list(dict.fromkeys(fault.node for fault in shared))
    why = f"{len(nodes)} nodes show the same: {shared[0].said}"
    return Suspect("infrastructure", None, "none", plain(why, 300), _evidence(shared))


def _software(programs: Sequence[_Fault]) -> Suspect:
    first = programs[0]
    return Suspect("software", first.node, "none", first.said, _evidence(programs))


def _evidence(faults: Iterable[_Fault]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fault.said for fault in faults))[:MOST_EVIDENCE]


def _hints(reports: Mapping[str, Optional[Sequence[Finding]]]) -> tuple[str, ...]:
    """Warnings, for the person who has to look further."""
    lines = (
        plain(f"node {node} {finding.detail} ({finding.check})", 300)
        for node, found in reports.items()
        for finding in found or ()
        if finding.status == "WARN"
    )
    return tuple(dict.fromkeys(lines))[:MOST_EVIDENCE]
