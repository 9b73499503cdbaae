"""Every row of every rows_*.py; and that a check that is broken turns a row red."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from healthcheck import policy, registry
from healthcheck.facts import Facts
from healthcheck.finding import Result
from tests.harness.fake_tools.judge import load, of, problem

ROOT = Path(__file__).resolve().parents[3]
ROWS = load()
CHECKS = {one.name: one for one in registry.discover()}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    assert problem(ROWS[name]) is None


def test_no_row_is_for_a_check_that_is_not_there() -> None:
    assert {row.check for row in ROWS.values()} <= set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_is_seen_to_fail_to_pass_and_to_be_unsure(check: str) -> None:
    seen = {row.status for row in of(check)}
    assert {"PASS", "UNKNOWN"} <= seen
    assert seen & {"FAIL", "WARN"}


def always(*results: Result) -> Callable[[Facts], Iterator[Result]]:
    return lambda _: iter(results)


BROKEN: dict[str, Callable[[Facts], Iterator[Result]]] = {
    "says nothing": always(),
    "passes": always(Result("PASS", "x")),
    "skips": always(Result("SKIP", "x")),
    "is unsure": always(Result("UNKNOWN", "x")),
    "fails": always(Result("FAIL", "x")),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_always_does_one_thing_is_found(
    check: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = dataclasses.replace(CHECKS[check], function=BROKEN[how])
    monkeypatch.setitem(registry._FOUND, check, changed)
    assert any(problem(row) for row in of(check))


ACTING = [name for name, rule in policy.POLICY.items() if rule.action != "none"]


@pytest.mark.parametrize("rule", ACTING)
def test_a_rule_that_does_nothing_any_more_is_found(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tame = dataclasses.replace(policy.POLICY[rule], action="none")
    monkeypatch.setitem(policy.POLICY, rule, tame)
    assert any(problem(row) for row in of(rule.partition(".")[0]))
