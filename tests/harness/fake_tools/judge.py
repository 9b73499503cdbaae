"""Run rows of data: what a check says on an edited node, against what the row wants."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from healthcheck import registry
from healthcheck.finding import Finding
from tests.harness.fake_tools import good
from tests.harness.fake_tools.rows import Row

FOLDER = Path(__file__).resolve().parents[2] / "unit" / "health"
ORDER = ("PASS", "SKIP", "UNKNOWN", "WARN", "FAIL")


@cache
def load() -> dict[str, Row]:
    """All rows of tests/unit/health/rows_*.py, by check, name, status and mode."""
    found: dict[str, Row] = {}
    for path in sorted(FOLDER.glob("rows_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for row in module.ROWS:
            key = f"{row.check}: {row.name} ({row.status}, {row.when})"
            assert key not in found, key
            found[key] = row
    return found


def of(check: str) -> list[Row]:
    """The rows of one check."""
    return [row for row in load().values() if row.check == check]


def worst(findings: Iterable[Finding]) -> Finding:
    """The finding that says most against the node."""
    return max(findings, key=lambda finding: ORDER.index(finding.status))


def problem(row: Row) -> str | None:
    """What the check says otherwise than the row wants; None: nothing."""
    node = good.node()
    row.edit(node)
    findings = node.check(row.check, row.when, limit_s=registry.LIMIT_S[row.when])
    if not findings:
        return "no finding"
    found = worst(findings)
    seen: dict[str, object] = {"status": found.status, "action": found.action}
    want: dict[str, object] = {"status": row.status, "action": row.action}
    if row.rule is not None:
        seen["rule"], want["rule"] = found.rule, row.rule
    if row.gpu is not None:
        seen["gpu"], want["gpu"] = found.gpu, row.gpu
    if seen != want or row.says not in found.detail:
        return f"{found} instead of {row}"
    return None
