"""In CI a skip is a failure, unless the test says why it may be skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
import pytest

def test_runs(): pass

def test_daemon_is_missing(): pytest.skip("no slurmctld")

@pytest.mark.may_skip("needs a GPU")
def test_no_gpu(): pytest.skip("no GPU")

@pytest.mark.may_skip()
def test_without_reason(): pytest.skip("lazy")

@pytest.mark.xfail(reason="known")
def test_expected_failure(): raise AssertionError
"""
SKIPPED_WHOLE = "import pytest\npytest.importorskip('no_such_library')\n"


@pytest.mark.parametrize(
    ("ci", "counts"),
    [("true", {"passed=1", "failed=2", "skipped=1", "error=1"}), ("", {"passed=1", "skipped=4"})],
)
def test_skip_is_a_failure_in_ci_only(tmp_path: Path, ci: str, counts: set[str]) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(MODULE)
    (tmp_path / "test_whole.py").write_text(SKIPPED_WHOLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  may_skip\n  torch\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--continue-on-collection-errors", "."],
        cwd=tmp_path,
        env=os.environ | {"CI": ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    seen = {
        f"{word.rstrip('s')}={count}"
        for count, word in re.findall(r"(\d+) ([a-z]+)", done.stdout.splitlines()[-1])
    }
    assert counts <= seen, done.stdout
    if ci:
        why = "CI does not skip, and this is not marked may_skip(reason). Skipped: no slurmctld"
        assert why in done.stdout
