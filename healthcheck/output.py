"""Findings as lines: for people, as JSON for srun and the supervisor, for Nagios, for HyperPod."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from healthcheck.finding import Finding, plain
from healthcheck.suspect import ACTIONS

_SAID = {"WARN": "warning: ", "UNKNOWN": "unknown: ", "SKIP": "skipped: "}
_REPAIR = {"replace": "replace", "reboot": "reboot", "reset": "reboot"}
_MOST_REASONS = 5


@dataclass(frozen=True)
class Report:
    """One run on one node; `unfit`: the findings that make it unfit."""

    node: str
    boot_id: str
    when: str
    findings: Sequence[Finding]
    unfit: Sequence[Finding]


def human(report: Report) -> list[str]:
    """One line per finding, and one that says whether the node is fit."""
    node, lines = report.node, []
    for finding in report.findings:
        said = f"muster check: {_SAID.get(finding.status, '')}node {node} {finding.detail}"
        if finding.status == "PASS":
            said = f"muster check: passed: node {node}: {finding.check}: {finding.detail}"
        elif finding.status in ("FAIL", "WARN"):
            said += f". Fix: {finding.fix}"
        lines.append(said)
    bad = ", ".join(dict.fromkeys(f.check for f in report.unfit))
    return [*lines, f"muster check: node {node} is {f'unfit: {bad}' if bad else 'fit'}"]


def as_json(report: Report) -> list[str]:
    """One object per finding, and one for the node; every line is shorter than 900 bytes."""
    reasons = [plain(f"{f.check}: {f.detail}", 120) for f in report.unfit]
    if len(reasons) > _MOST_REASONS:
        reasons = [*reasons[:_MOST_REASONS], f"and {len(reasons) - _MOST_REASONS} more"]
    last = {
        "node": report.node,
        "boot_id": report.boot_id,
        "fit": not report.unfit,
        "unfit": reasons,
    }
    lines = [json.dumps({"node": report.node, **f.as_json()}) for f in report.findings]
    return [*lines, json.dumps(last)]


def nagios(report: Report) -> tuple[str, int]:
    """One line and the exit code 0, 1, 2 or 3."""
    node = report.node
    for status, word, code in (("WARN", "WARNING", 1), ("UNKNOWN", "UNKNOWN", 3)):
        bad = [f for f in report.findings if f.status == status]
        if bad and not report.unfit:
            return f"MUSTER {word} - node {node} {bad[0].detail}", code
    if report.unfit:
        return f"MUSTER CRITICAL - node {node} " + "; ".join(f.detail for f in report.unfit), 2
    return f"MUSTER OK - node {node}: {len(report.findings)} findings", 0


def result(report: Report) -> str:
    """The line that HyperPod's tools and our prolog read; always the last one.

    `HEALTH_CHECK_RESULT:<host>:<Passed|Failed|Skipped>:<none|reboot|replace>:<reason>`. Skipped:
    nothing could be looked at.
    """
    head = f"HEALTH_CHECK_RESULT:{report.node}"
    if report.unfit:
        worst = min(report.unfit, key=lambda finding: ACTIONS.index(finding.action))
        why = plain(f"{worst.check}: {worst.detail}", 200)
        return f"{head}:Failed:{_REPAIR.get(worst.action, 'none')}:{why}"
    if any(finding.status in ("PASS", "WARN", "FAIL") for finding in report.findings):
        return f"{head}:Passed:none:"
    return f"{head}:Skipped:none:no check could look at anything"
