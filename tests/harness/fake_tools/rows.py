"""Rows of data: what is edited on a fit node, and what one check must say then.

The rows of a domain are a list ROWS in tests/unit/health/rows_<domain>.py; test_rows.py there runs
them all, and fails when a check has no row that fails (or warns), passes, and is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Optional

from healthcheck.finding import Status
from tests.harness.fake_tools.node import FakeNode

Edit = Callable[[FakeNode], object]


def untouched(_: FakeNode) -> None:
    """The fit node as it is."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: what is wrong with the node, in words.
        check: the check that looks at it.
        status: the worst that it says: PASS < SKIP < UNKNOWN < WARN < FAIL.
        edit: what is done to the fit node before.
        rule: the row of the policy table; None: the check's own name.
        action: what is done about it; only for FAIL.
        when: the mode.
        says: a part of the detail.
        gpu: the GPU that it names.
    """

    name: str
    check: str
    status: Status
    edit: Edit = untouched
    rule: Optional[str] = None
    action: str = "none"
    when: str = "periodic"
    says: str = ""
    gpu: Optional[str] = None


def both(*edits: Edit) -> Edit:
    """One edit after the other."""

    def edit(node: FakeNode) -> None:
        for one in edits:
            one(node)

    return edit


def profile(**values: object) -> Edit:
    """The profile expects something else."""

    def edit(node: FakeNode) -> None:
        node.profile = replace(node.profile, **values)  # type: ignore[arg-type]

    return edit
