"""Every problem that users report of containers is named by something that exists, and works."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from healthcheck.registry import discover
from muster.image import contract, preflight
from slurm.lint.linter import rules

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/container_problems.md"
LAST = 18
WORD = re.compile(r"`(lint|check|preflight|health|test): ([^`]+)`")


def rows() -> list[tuple[int, list[tuple[str, str]]]]:
    """(number, (kind, name) of what names it) of every row of the table of problems."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells[0].isdigit():
            found.append((int(cells[0]), WORD.findall(line)))
    return found


def known(kind: str) -> set[str]:
    """The names of one kind that there are."""
    if kind == "lint":
        return {rule.name for rule in rules()}
    if kind == "health":
        return {one.name for one in discover()}
    return set({"check": contract.RULES, "preflight": preflight.RULES}[kind])


def is_test(name: str) -> bool:
    path, _, function = name.partition("::")
    file = ROOT / "tests" / path
    if not file.is_file():
        return False
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return any(isinstance(n, ast.FunctionDef) and n.name == function for n in tree.body)


def test_every_problem_has_its_row() -> None:
    assert sorted(Counter(number for number, _ in rows())) == list(range(1, LAST + 1))


def test_every_problem_is_named_by_something() -> None:
    assert [number for number, names in rows() if not names] == []


def test_whatever_names_it_exists() -> None:
    every = {word for _, names in rows() for word in names}
    missing = {
        (kind, name)
        for kind, name in every
        if not (is_test(name) if kind == "test" else name in known(kind))
    }
    assert missing == set()


def test_every_rule_about_containers_is_in_the_table() -> None:
    said = {word for _, names in rows() for word in names}
    own = {one.name for one in rules() if one.find.__module__ == "slurm.lint.rules.container"}
    wanted = {("lint", name) for name in own}
    wanted |= {("check", name) for name in contract.RULES}
    wanted |= {("preflight", name) for name in preflight.RULES}
    assert wanted - said == set()
    assert len(own) > 8
