"""Slurm's TaskProlog: what of its variables reaches a task, and that it ends no job."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "slurm" / "task_prolog.sh"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    shutil.copy2(PROGRAM, tmp_path)
    (tmp_path / "environment.d").mkdir()
    return tmp_path


def told(site: Path, **env: str) -> list[str]:
    done = subprocess.run(
        ["bash", str(site / PROGRAM.name)],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_variables_come_as_they_are_written(site: Path) -> None:
    text = 'NCCL_IB_HCA=mlx5\nX=it\'s $HOME `id` "a b"=\\n\nEMPTY=\nLAST=without end'
    (site / "environment.d" / "cluster.env").write_text(text)
    assert told(site) == [f"export {line}" for line in text.splitlines()]


def test_the_job_wins_and_then_the_first_file(site: Path) -> None:
    (site / "environment.d" / "cluster.env").write_text("A=cluster\nB=cluster\n")
    (site / "environment.d" / "detected.env").write_text("B=detected\nC=detected\nC=again\n")
    assert told(site) == ["export A=cluster", "export B=cluster", "export C=detected"]
    assert told(site, A="", C="job") == ["export B=cluster"]


def test_what_is_no_variable_is_left_out(site: Path) -> None:
    text = "# A=1\n\n A=2\nB-C=3\n1D=4\nprint hello\nUID=5\nE=6\n"
    (site / "environment.d" / "cluster.env").write_text(text)
    (site / "environment.d" / "notes.txt").write_text("F=7\n")
    assert told(site) == ["export E=6"]


def test_without_any_file_nothing_is_told(site: Path) -> None:
    assert told(site) == []
    (site / "environment.d").rmdir()
    assert told(site) == []
