"""The rows of `./run faults` that CI and `./run frameworks` run: is the right thing done?"""

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


def rows() -> list[object]:
    """One parameter a row; those of Python recipes need torch."""
    return [
        pytest.param(recipe, name, marks=[pytest.mark.torch] if TWINS[recipe].is_python else [])
        for recipe in TWINS
        for name, one in FAULTS.items()
        if recipe in one.ci
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Undisturbed runs are trained once for all rows."""
    return Path(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(("recipe", "name"), rows())
def test_fault(recipe: str, name: str, cluster: LocalCluster, folder: Path) -> None:
    rehearsal = Rehearsal(cluster, TWINS[recipe], folder / recipe)
    row = rehearsal.meet(FAULTS[name])
    assert not row.problems, (rehearsal.folder / name / "story.txt").read_text()
