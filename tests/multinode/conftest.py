"""A cluster for the whole session, and recipes copied to where a user would put them."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.cluster import LocalCluster
from tests.faults.rehearsal import SHAPE
from tests.harness.fixtures import plugin_problem, slurm_here
from tests.harness.nodes import back_to_service

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["slurm_here"]

ROOT = Path(__file__).resolve().parents[2]
TEN_LINES = ROOT / "tests" / "data" / "recipes" / "ten_lines"


@pytest.fixture(scope="session")
def shared_cluster(slurm_here: None) -> Iterator[LocalCluster]:
    """One for all tests of this folder."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plugin_problem()
    one = LocalCluster(f"m{os.getpid()}", replace(SHAPE, nodes=8))
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The same cluster; every node healthy, idle and in service again before the next test."""
    yield shared_cluster
    shared_cluster.exec(["scancel", "--state=RUNNING"])
    shared_cluster.exec(["scancel", "--state=PENDING"])
    back_to_service(shared_cluster)


@pytest.fixture
def ten_lines(tmp_path: Path) -> Path:
    """The bash recipe, in a folder with a blank in its name."""
    return Path(shutil.copytree(TEN_LINES, tmp_path / "ten lines"))


@pytest.fixture
def auto_resume(shared_cluster: LocalCluster) -> None:
    """The cluster has srun --auto-resume=1; skipped, or in CI failed, where it cannot be built."""
    problem = plugin_problem()
    if problem is not None and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem is not None:
        pytest.skip(problem)
