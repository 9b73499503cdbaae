"""Every row of every rows_*.py, and that no check is without its rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from healthcheck import registry
from healthcheck.finding import Finding
from tests.harness.fake_tools import good
from tests.harness.fake_tools.rows import Row

# Checks from before there were rows; delete a name when its rows are written.
WITHOUT_ROWS: set[str] = set()
ORDER = ("PASS", "SKIP", "UNKNOWN", "WARN", "FAIL")


def load() -> dict[str, Row]:
    """All rows, by file, check and name."""
    found: dict[str, Row] = {}
    for path in sorted(Path(__file__).parent.glob("rows_*.py")):
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


ROWS = load()


def worst(findings: list[Finding]) -> Finding:
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


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    assert problem(ROWS[name]) is None


@pytest.mark.parametrize("check", [one.name for one in registry.discover()])
def test_a_check_is_seen_to_fail_to_pass_and_to_be_unsure(check: str) -> None:
    seen = {row.status for row in ROWS.values() if row.check == check}
    if check in WITHOUT_ROWS:
        assert not seen
        return
    assert {"PASS", "UNKNOWN"} <= seen
    assert seen & {"FAIL", "WARN"}
