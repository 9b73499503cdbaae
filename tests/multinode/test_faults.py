"""The rows of `./run faults` that sessions of tests run: is the right thing done?

CI runs those that a fault names. Two every recipe has to meet, also one that nobody listed: in
`./run multinode`, or in `./run frameworks` when its libraries need an environment of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults import fault, twin
from tests.faults.rehearsal import Rehearsal

if TYPE_CHECKING:
    from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster
FAULTS, TWINS = fault.discover(), twin.discover()
EVERY_RECIPE = ("kill_rank", "lose_worker_silently")


def rows() -> list[object]:
    """One parameter a row; those of Python recipes need torch, what CI leaves out is slow."""
    found: list[object] = []
    for recipe, mine in TWINS.items():
        for name, one in FAULTS.items():
            if recipe in one.ci or name in EVERY_RECIPE:
                slow = [] if recipe in one.ci else [pytest.mark.slow]
                torch = [pytest.mark.torch] if mine.is_python else []
                found.append(pytest.param(recipe, name, marks=[*slow, *torch]))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Undisturbed runs are trained once for all rows."""
    return Path(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(("recipe", "name"), rows())
def test_fault(recipe: str, name: str, cluster: LocalCluster, folder: Path) -> None:
    rehearsal = Rehearsal(cluster, TWINS[recipe], folder / recipe)
    row = rehearsal.meet(FAULTS[name])
    assert not row.problems, (rehearsal.folder / name / "story.txt").read_text()
