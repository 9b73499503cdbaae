"""Fixtures that several folders of tests use."""

from __future__ import annotations

import os

import pytest

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
