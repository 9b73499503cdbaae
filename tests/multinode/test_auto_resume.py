"""`srun --auto-resume=1` and the templates in slurm/, with real sbatch, on a real cluster."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resume.durable import read_lines
from tests.harness.training import submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]

# A program that knows nothing of muster: it keeps its own state, and 40 of its steps take 8 s.
PLAIN = """\
file=state.$RANK
step=$(cat "$file" 2>/dev/null || echo 0)
echo "rank $RANK of $WORLD_SIZE from $step on $(hostname), GPUs $CUDA_VISIBLE_DEVICES"
((RANK)) || echo "rank 0 is at $(hostname -i), the others look at $MASTER_ADDR"
until ((step == ${1:-40})); do sleep 0.2 && step=$((step + 1)) && echo "$step" >"$file"; done
"""


class Script:
    """A batch script with `srun --auto-resume=1` lines, submitted."""

    def __init__(self, cluster: LocalCluster, folder: Path, script: Path, *options: str) -> None:
        self.cluster, self.folder = cluster, folder
        output = f"--output={folder / 'job.out'}"
        argv = ["sbatch", "--parsable", f"--chdir={folder}", output, *options, str(script)]
        self.job = cluster.exec(argv).out.strip()
        assert self.job.isdigit()

    @property
    def output(self) -> str:
        path = self.folder / "job.out"
        return path.read_text() if path.exists() else ""

    def journal(self, line: int = 0) -> list[dict[str, Any]]:
        return read_lines(self.folder / "runs" / self.job / f"srun_{line}" / "journal.jsonl")

    def nodes(self, line: int = 0) -> list[str]:
        """Those of the newest attempt; a spare that was the first to answer may be among them."""
        started = [e for e in self.journal(line) if e["event"] == "attempt_started"]
        return list(started[-1]["nodes"])

    def wait(self, condition: Callable[[], object], timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def wait_state(self, rank: int, step: int) -> None:
        path = self.folder / f"state.{rank}"
        self.wait(lambda: path.exists() and int(path.read_text() or 0) >= step)

    def wait_end(self) -> str:
        """Everything that the job wrote."""
        listed = ["squeue", "--noheader", "--job", self.job]
        self.wait(lambda: not self.cluster.exec(listed).out.strip(), 120)
        return self.output


def write(folder: Path, *lines: str) -> Path:
    """The template's #SBATCH lines over lines of our own."""
    template = (ROOT / "slurm" / "auto_resume.sbatch").read_text().splitlines()
    kept = [line for line in template if line.startswith(("#!", "#SBATCH"))]
    script = folder / "job.sbatch"
    script.write_text("\n".join([*kept, *lines, ""]))
    (folder / "plain.sh").write_text(PLAIN)
    return script


def test_lost_node_is_replaced_and_the_step_goes_on(
    cluster: LocalCluster, auto_resume: None, tmp_path: Path
) -> None:
    line = "srun --auto-resume=1 --nodes=2 --ntasks-per-node=2 --gpus-per-node=8 -l bash plain.sh"
    run = Script(cluster, tmp_path, write(tmp_path, line, 'echo "ended with $?"'))
    run.wait_state(3, 10)
    host, worker = run.nodes()
    cluster.node("kill", worker)
    said = run.wait_end()
    assert "ended with 0" in said
    assert [e["cause"] for e in run.journal() if e["event"] == "incident"] == ["node_lost"]
    started = [e["nodes"] for e in run.journal() if e["event"] == "attempt_started"]
    (spare,) = {"n1", "n2", "n3"} - {host, worker}
    assert [set(nodes) for nodes in started] == [{host, worker}, {host, spare}]
    second = [text for text in said.splitlines() if f"on {spare}, GPUs 0,1,2,3,4,5,6,7" in text]
    ranks = ["2", "3"] if host < spare else ["0", "1"]
    assert sorted(text.split(":")[0] for text in second) == ranks  # -l was handed on
    assert all(" from 0 " not in text for text in second)
    assert "requeue" not in said


def test_fault_of_the_program_is_not_retried_and_is_the_end_of_srun(
    cluster: LocalCluster, auto_resume: None, tmp_path: Path
) -> None:
    lines = [
        "srun --auto-resume=1 --nodes=2 bash -c 'exit $((RANK * 7))' || echo code $?",
        "srun --auto-resume=1 --nodes=2 bash -c 'kill -SEGV $$' || echo code $?",
        "srun --auto-resume=0 --nodes=2 bash -c 'echo plain ${RANK:-srun}'",
    ]
    run = Script(cluster, tmp_path, write(tmp_path, *lines))
    said = run.wait_end()
    assert [word for word in ("code 7", "code 139", "plain srun") if word not in said] == []
    for line in (0, 1):
        events = [entry["event"] for entry in run.journal(line)]
        assert (events.count("attempt_started"), events[-1]) == (1, "stopped")


def test_unfit_node_is_blamed_before_the_program(
    cluster: LocalCluster, auto_resume: None, tmp_path: Path
) -> None:
    """A rank dies with its GPU, sooner than the periodic check of the node looks."""
    broken = tmp_path / "broken"
    line = f"srun --auto-resume=1 --nodes=2 bash -c 'until [[ -e {broken} ]]; do sleep 0.1; done; "
    line += f"[[ $(hostname) != $(<{broken}) ]]'"
    run = Script(cluster, tmp_path, write(tmp_path, line, 'echo "ended with $?"'))
    run.wait(lambda: any(entry["event"] == "attempt_started" for entry in run.journal()))
    _, worker = run.nodes()
    cluster.node("gpu-break", worker, gpu=3)
    broken.with_name("new").write_text(worker)
    broken.with_name("new").rename(broken)
    assert "ended with 0" in run.wait_end()
    assert [e["cause"] for e in run.journal() if e["event"] == "incident"] == ["node_unfit"]


def test_lost_batch_host_brings_the_script_back_where_it_was(
    cluster: LocalCluster, auto_resume: None, tmp_path: Path
) -> None:
    lines = [
        "srun --auto-resume=1 --nodes=2 bash -c 'echo first line'",
        "srun --auto-resume=1 --nodes=2 --ntasks-per-node=1 bash plain.sh",
    ]
    run = Script(cluster, tmp_path, write(tmp_path, *lines))
    run.wait_state(1, 10)
    cluster.node("kill", "n1")
    said = run.wait_end()
    assert said.count("first line\n") == 2  # two ranks, once
    assert run.journal(1)[-1]["event"] == "done"
    assert "takeover" in said
    found = re.findall(r"rank 0 is at (\S+), the others look at (\S+)", said)
    assert len(found) == 2
    assert all(own == given for own, given in found)


def test_template_for_srun_runs_as_it_is(
    cluster: LocalCluster, auto_resume: None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'], flush=True)\n")
    run = Script(cluster, tmp_path, ROOT / "slurm" / "auto_resume.sbatch")
    said = run.wait_end()
    assert sum(text.startswith("rank ") for text in said.splitlines()) == 16
    assert run.journal()[-1]["event"] == "done"


def test_template_for_a_recipe_runs_as_it_is(cluster: LocalCluster, ten_lines: Path) -> None:
    shutil.copy(ROOT / "slurm" / "template.sbatch", ten_lines / "run.sbatch")
    run = submit(cluster, ten_lines, "--", "10")
    assert run.wait_end() == "done", run.story()
