"""The page of all health checks is what the code says."""

from __future__ import annotations

from pathlib import Path

from healthcheck import catalogue
from healthcheck.policy import POLICY
from healthcheck.registry import discover

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/health_checks.md"


def test_the_page_is_up_to_date() -> None:
    fix = "python3 -m healthcheck.catalogue > docs/reference/health_checks.md"
    assert PAGE.read_text(encoding="utf-8") == catalogue.page(), f"run: {fix}"


def test_every_check_and_every_rule_is_on_it() -> None:
    said = catalogue.page()
    assert [one.name for one in discover() if f"| `{one.name}` |" not in said] == []
    assert [rule for rule in POLICY if f"\n| `{rule}` |" not in said] == ["any"]


def test_every_check_says_what_it_looks_at() -> None:
    assert [one.name for one in discover() if len(catalogue.about(one)) < 20] == []
    assert len(list(catalogue.lines())) == 2 * len(discover())
