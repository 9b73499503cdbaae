"""Fixtures that several folders of tests use."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path

import pytest

from muster import process
from muster.cluster import packages
from muster.errors import UnavailableError


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """Skip without Slurm's daemons; in CI install them, or fail."""
    try:
        if os.environ.get("CI") == "true":
            packages.ensure()
        if packages.missing():
            pytest.skip(f"packages are missing: {packages.missing()}")
        packages.ensure_namespaces()
    except UnavailableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@cache
def plugin_problem() -> str | None:
    """Build the SPANK plugin, which every cluster that comes up later has; what went wrong."""
    folder = Path(__file__).resolve().parents[2] / "slurm" / "spank"
    with (folder / "Makefile").open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        built = process.run(["make", "-C", str(folder)], 120)
    return None if built.ok else f"slurm/spank: {built.reason} (needs make, gcc, libslurm-dev)"
