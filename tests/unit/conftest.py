"""What all unit tests share: programs on PATH, and properties without a clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests.harness.programs import Scontrol, put

# No deadline: a busy machine must not fail a property. No database: a test writes into tmp only.
hypothesis.settings.register_profile(
    "muster",
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("muster")


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def program(bin_folder: Path) -> Callable[[str, str], Path]:
    """Put a small program on PATH: program("scontrol", "echo hello")."""
    return lambda name, text: put(bin_folder, name, text)


@pytest.fixture
def scontrol(bin_folder: Path, tmp_path: Path) -> Scontrol:
    """A fake scontrol with files for answers."""
    return Scontrol.install(bin_folder, tmp_path / "slurm")
