"""The page of all rules of `muster lint` is what the code says."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from slurm.cli import add_parser
from slurm.lint import catalogue
from slurm.lint.linter import rules

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/lint_rules.md"


def test_the_page_is_up_to_date() -> None:
    fix = "python3 -m slurm.lint.catalogue > docs/reference/lint_rules.md"
    assert PAGE.read_text(encoding="utf-8") == catalogue.page(), f"run: {fix}"


def test_every_rule_is_on_it_once() -> None:
    said = catalogue.page()
    assert [one.name for one in rules() if said.count(f"\n| `{one.name}` |") != 1] == []


def test_every_option_has_its_row() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    add_parser(verbs)
    options = {o for action in verbs.choices["lint"]._actions for o in action.option_strings}
    page = PAGE.with_name("lint.md").read_text(encoding="utf-8")
    assert options - {"-h", "--help"} == set(re.findall(r"^\| `(--[a-z]+)` \|", page, re.MULTILINE))


def test_every_option_of_slurm_conf_has_its_row() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    add_parser(verbs)
    (below,) = (a.choices for a in verbs.choices["slurm-conf"]._actions if a.dest == "conf_verb")
    assert isinstance(below, dict)
    options = {o for verb in below.values() for a in verb._actions for o in a.option_strings}
    page = PAGE.with_name("slurm_conf.md").read_text(encoding="utf-8")
    source = {"--resource-config", "--provisioning", "--cfnconfig", "--user-data"}  # of describe
    rows = set(re.findall(r"^\| `(--[a-z-]+)` \|", page, re.MULTILINE))
    assert options - {"-h", "--help"} - source == rows
    assert {f"muster slurm-conf {name}" for name in below} == set(
        re.findall(r"^\| `(muster slurm-conf \w+)` \|", page, re.MULTILINE)
    )
