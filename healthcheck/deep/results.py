"""From what every node and every pair of nodes found to the result of each node: pure.

A node has passed when it was tested and nothing speaks against it: not its own checks, not its
peers, which do the same work faster or with other bits, and not two partners that pass otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Optional

from healthcheck.deep import peers
from healthcheck.deep.pairs import Pair, blame
from healthcheck.finding import Finding, Result, plain
from healthcheck.policy import judge
from healthcheck.policy.deep import BLAMED

Word = Literal["Passed", "Failed", "Skipped"]
COMPARED = {"deep_allreduce": "deep_allreduce.slow", "deep_disk": "deep_disk.slow"}
"""Measured checks, and the policy row for a node that is slower than its peers."""


@dataclass(frozen=True)
class NodeResult:
    """Passed, Failed or Skipped (not tested), and why."""

    word: Word
    failed: list[Finding] = field(default_factory=list)
    why: str = ""


def alone(reports: Mapping[str, Optional[Sequence[Finding]]]) -> dict[str, NodeResult]:
    """Results after every node was tested by itself; None: it gave no answer."""
    against = _against_peers({node: found or () for node, found in reports.items()})
    return {
        node: _result(found, against.get(node, [])) if found is not None else _no_answer()
        for node, found in reports.items()
    }


def passed(found: Sequence[Finding]) -> Optional[bool]:
    """Whether a pair passed, by what both nodes found; None: nobody knows.

    One failure fails it. It passed if both say so of every test that could be made.
    """
    said: dict[str, list[str]] = {}
    for finding in found:
        if finding.status != "SKIP":
            said.setdefault(finding.check, []).append(finding.status)
    if any("FAIL" in statuses for statuses in said.values()):
        return False
    both = all(statuses == ["PASS", "PASS"] for statuses in said.values())
    return True if said and both else None


def in_pairs(
    before: Mapping[str, NodeResult], tried: Mapping[Pair, Optional[bool]]
) -> dict[str, NodeResult]:
    """The same after pairs of nodes were tested: who fails with whoever it meets is to blame."""
    blamed = blame(tried).nodes
    return {
        node: NodeResult("Failed", [*result.failed, _blamed(node)]) if node in blamed else result
        for node, result in before.items()
    }


def _result(found: Sequence[Finding], peers_say: Sequence[Finding]) -> NodeResult:
    failed = [finding for finding in found if finding.status == "FAIL"]
    failed += [finding for finding in peers_say if finding.rule not in {f.rule for f in failed}]
    if failed:
        return NodeResult("Failed", failed)
    tested = [f for f in found if f.check.startswith("deep_") or f.check == "dcgm_diag"]
    if not any(finding.status in ("PASS", "WARN") for finding in tested):
        why = next((f.detail for f in tested if f.status in ("SKIP", "UNKNOWN")), "nothing to test")
        return NodeResult("Skipped", why=plain(why))
    return NodeResult("Passed")


def _no_answer() -> NodeResult:
    return NodeResult("Skipped", why="gave no answer in time")


def _against_peers(reports: Mapping[str, Sequence[Finding]]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for check, rule in COMPARED.items():
        values = {
            node: finding.value
            for node, findings in reports.items()
            for finding in findings
            if finding.check == check and finding.value is not None
        }
        for node in peers.slow(values):
            what = Result("FAIL", f"reaches {values[node]:.3g}, below 80 % of its peers", rule)
            found.setdefault(node, []).append(judge(check, what, node))
    sums = {
        node: finding.checksum
        for node, findings in reports.items()
        for finding in findings
        if finding.check == "deep_matmul" and finding.checksum is not None
    }
    for node in peers.differ(sums):
        what = Result("FAIL", "computes other bits than its peers")
        found.setdefault(node, []).append(judge("deep_matmul", what, node))
    return found


def _blamed(node: str) -> Finding:
    return Finding(
        check="pairs",
        status="FAIL",
        class_=BLAMED.class_,
        action=BLAMED.action,
        detail="fails with two partners that pass with others",
        fix=BLAMED.fix.format(node=node),
        rule="pairs.blamed",
    )
