"""A real cluster for the tests: one for the session, and fresh ones for those that break it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from muster.cluster import LocalCluster, Shape
from tests.harness.fixtures import slurm_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["slurm_here"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def cluster(slurm_here: None) -> Iterator[LocalCluster]:
    """8 nodes, as a user gets them. Gone with this process. Leave it as you found it."""
    one = LocalCluster(f"t{os.getpid()}")
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


@pytest.fixture
def make_cluster(slurm_here: None) -> Iterator[Callable[..., LocalCluster]]:
    """A function that brings up a cluster of its own for this test: make_cluster(nodes=2)."""
    made: list[LocalCluster] = []

    def make(**shape: Any) -> LocalCluster:
        name = f"f{os.getpid()}-{len(made)}"
        one = LocalCluster(name, Shape(**{"nodes": 2, "boot_s": 0.1, **shape}))
        made.append(one)
        one.up(owner_pid=os.getpid())
        return one

    yield make
    for one in made:
        one.down()


@pytest.fixture
def fresh_cluster(make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Two nodes, to be broken; no periodic health check, which would drain what is broken."""
    return make_cluster(settings=(("HealthCheckInterval", "0"),))


@pytest.fixture
def until() -> Callable[..., None]:
    """until(condition): poll it until it holds; a generous limit, never a timing claim."""

    def wait(condition: Callable[[], object], limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.02)

    return wait


@pytest.fixture
def cli() -> list[str]:
    """`muster cluster` as a command."""
    code = f"import sys; sys.path[0] = {str(ROOT)!r}; from muster.cluster.cli import main; main()"
    return [sys.executable, "-c", code]


@pytest.fixture
def run_cli(cli: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_cli("up", "--name", "x"): with pipes, as a script would call it."""

    def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        defaults = {"capture_output": True, "text": True, "timeout": 120}
        return subprocess.run([*cli, *argv], check=False, **{**defaults, **options})

    return run
