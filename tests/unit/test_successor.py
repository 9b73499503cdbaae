"""The job after one that may not be requeued: same script, words and RUN_DIR, and only once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster import slurm
from muster.errors import UnavailableError
from resume import successor


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my recipe" / "run.sbatch"
    path.parent.mkdir()
    path.write_text("#!/bin/bash\n")
    return path


def job(script: Path, words: str = "") -> slurm.Job:
    submitted = (("partition", "gpu"), ("nodes", "3"), ("time", "01:00:00"))
    command = f"{script} {words}".strip()
    return slurm.Job("7", "RUNNING", [], None, 0, command, requeue=False, submitted=submitted)


def test_same_script_words_and_run_dir_once(
    script: Path, program: Callable[[str, str], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    program("sbatch", f'printf "%s\\n" "$@" "$MUSTER_CONTINUE" >>{tmp_path}/asked; echo "8;c"')
    monkeypatch.setattr("sys.argv", ["muster", "run", "nodes=2", "--", "data=a b"])
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for _ in range(2):
        assert successor.submit(job(script, "nodes=2 -- data=a b"), run_dir, 10) == "8"
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--parsable", "--dependency=afterany:7", "--partition=gpu", "--nodes=3", "--time=01:00:00",
        str(script), "nodes=2", "--", "data=a b", f"7:{run_dir}",
    ]  # fmt: skip


def test_a_refusal_says_what_slurm_said(
    script: Path, program: Callable[[str, str], Path], tmp_path: Path
) -> None:
    program("sbatch", 'echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1')
    with pytest.raises(UnavailableError, match="QOSMaxSubmitJobPerUserLimit"):
        successor.submit(job(script), tmp_path, 10)
    assert not (tmp_path / "successors").exists()


def test_a_script_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="its script is gone"):
        successor.submit(job(tmp_path / "gone"), tmp_path, 10)


@pytest.mark.parametrize(
    ("text", "own", "wanted"),
    [
        ("", ["run"], []),
        ("a b", ["run", "a b"], ["a b"]),
        ("a b", ["run", "a", "b"], ["a", "b"]),
        ("a b", ["run", "--recipe", "x"], ["a", "b"]),  # the script does not pass its words on
    ],
)
def test_words_of_the_script(text: str, own: list[str], wanted: list[str]) -> None:
    assert successor.arguments(f"/s {text}".strip(), Path("/s"), own) == wanted


def test_what_belongs_to_one_job_is_not_handed_on() -> None:
    values = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CONF": "/c", "HOME": "/h"}
    found = successor.environment(values, "7", Path("/a:b"))
    assert found == {"SLURM_CONF": "/c", "HOME": "/h", "MUSTER_CONTINUE": "7:/a:b"}
    assert successor.predecessor(found) == ("7", Path("/a:b"))
    assert successor.predecessor({}) is None
