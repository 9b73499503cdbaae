"""Which job is on a node, as exporters read it; and whatever is missing, no node is lost for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Node:
    """The two folders of a node that exporters read."""

    def __init__(self, folder: Path) -> None:
        self.figures, self.gpus = folder / "figures", folder / "gpus"
        self.figures.mkdir()
        self.gpus.mkdir()

    def run(self, which: str, **env: str) -> None:
        """Prolog or epilog as slurmd runs it: with next to nothing in its environment."""
        places = {"MUSTER_FIGURES": str(self.figures), "MUSTER_GPU_JOBS": str(self.gpus)}
        done = subprocess.run(
            [str(ROOT / "slurm" / f"{which}.d" / "muster_jobs.sh")], cwd="/",
            env={"PATH": os.environ["PATH"], **places, **env},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def jobs(self) -> dict[str, str]:
        """{GPU: its jobs}."""
        return {path.name: path.read_text() for path in self.gpus.iterdir()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_job_is_seen_while_it_is_there(node: Node) -> None:
    job = {"SLURM_JOB_USER": 'a"n\na', "SLURM_JOB_PARTITION": "main"}
    node.run("prolog", SLURM_JOB_ID="41", SLURM_JOB_GPUS="0,3", **job)
    node.run("prolog", SLURM_JOB_ID="42", SLURM_JOB_GPUS="3", **job)
    (one, two) = sorted(node.figures.iterdir())
    assert (one.name, two.name) == ("muster_job_41.prom", "muster_job_42.prom")
    line = 'slurm_job_info{slurm_job="41",user="a_n_a",partition="main"} 1'
    assert one.read_text().splitlines()[2] == line
    assert one.stat().st_mode & 0o777 == 0o644
    # The exporter takes a name from several files only if they say the same of it.
    assert one.read_text().splitlines()[:2] == two.read_text().splitlines()[:2]
    assert node.jobs() == {"0": "41\n", "3": "41\n42\n"}
    node.run("epilog", SLURM_JOB_ID="41")
    assert [path.name for path in node.figures.iterdir()] == ["muster_job_42.prom"]
    assert node.jobs() == {"3": "42\n"}
    node.run("epilog", SLURM_JOB_ID="42")
    assert (list(node.figures.iterdir()), node.jobs()) == ([], {})


@pytest.mark.parametrize("which", ["prolog", "epilog"])
def test_nothing_that_is_missing_fails(node: Node, which: str) -> None:
    node.run(which)
    node.run(which, SLURM_JOB_ID="../x", SLURM_JOB_GPUS="0")
    node.run(which, SLURM_JOB_ID="7", SLURM_JOB_GPUS="all ../y")
    node.run("epilog", SLURM_JOB_ID="7")
    assert (list(node.figures.iterdir()), node.jobs()) == ([], {})
    node.figures.rmdir()
    node.gpus.rmdir()
    node.run(which, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
