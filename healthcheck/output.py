"""Findings as lines: for people, as JSON for srun and the supervisor, and for Nagios."""

from __future__ import annotations

import json
from collections.abc import Sequence

from healthcheck.finding import Finding, plain

_SAID = {"WARN": "warning: ", "UNKNOWN": "unknown: ", "SKIP": "skipped: "}
_MOST_REASONS = 5


def human(findings: Sequence[Finding], node: str, unfit: Sequence[Finding]) -> list[str]:
    """One line per finding, and one that says whether the node is fit."""
    lines = []
    for finding in findings:
        said = f"muster check: {_SAID.get(finding.status, '')}node {node} {finding.detail}"
        if finding.status == "PASS":
            said = f"muster check: passed: node {node}: {finding.check}: {finding.detail}"
        elif finding.status in ("FAIL", "WARN"):
            said += f". Fix: {finding.fix}"
        lines.append(said)
    verdict = f"unfit: {', '.join(dict.fromkeys(f.check for f in unfit))}" if unfit else "fit"
    return [*lines, f"muster check: node {node} is {verdict}"]


def as_json(
    findings: Sequence[Finding], node: str, boot_id: str, unfit: Sequence[Finding]
) -> list[str]:
    """One object per finding, and one for the node; every line is shorter than 900 bytes."""
    reasons = [plain(f"{f.check}: {f.detail}", 120) for f in unfit]
    if len(reasons) > _MOST_REASONS:
        reasons = [*reasons[:_MOST_REASONS], f"and {len(reasons) - _MOST_REASONS} more"]
    last = {"node": node, "boot_id": boot_id, "fit": not unfit, "unfit": reasons}
    lines = [json.dumps({"node": node, **finding.as_json()}) for finding in findings]
    return [*lines, json.dumps(last)]


def nagios(findings: Sequence[Finding], node: str, unfit: Sequence[Finding]) -> tuple[str, int]:
    """One line and the exit code 0, 1, 2 or 3."""
    for status, word, code in (("WARN", "WARNING", 1), ("UNKNOWN", "UNKNOWN", 3)):
        if not unfit and any(f.status == status for f in findings):
            bad = [f for f in findings if f.status == status]
            return f"MUSTER {word} - node {node} {bad[0].detail}", code
    if unfit:
        return f"MUSTER CRITICAL - node {node} " + "; ".join(f.detail for f in unfit), 2
    return f"MUSTER OK - node {node}: {len(findings)} findings", 0
