"""The Llama 2 recipe, copied as a user does and submitted from /, loses a node: bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.training import Training, submit

if TYPE_CHECKING:
    from muster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.torch]
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"
STEPS, EVERY = 40, 5
OVERRIDES = [f"train.steps={STEPS}", f"checkpoint.every={EVERY}"]


@pytest.fixture(scope="module")
def my_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`cp -r recipes/llama2_fsdp "$HOME/my copy"`."""
    ignore = shutil.ignore_patterns("runs", "data", "__pycache__")
    home = tmp_path_factory.mktemp("home")
    return Path(shutil.copytree(RECIPE, home / "my copy", ignore=ignore))


@pytest.fixture(scope="module")
def undisturbed(shared_cluster: LocalCluster, my_copy: Path) -> Training:
    """The run that nothing happens to."""
    run = submit(shared_cluster, my_copy, "--", *OVERRIDES)
    assert run.wait_end() == "done", run.story()
    assert sorted(run.curve()) == list(range(1, STEPS + 1))
    return run


def same_training(one: Training, other: Training) -> None:
    """Every loss, every sample and the final weights."""
    assert one.curve() == other.curve()
    assert (one.run_dir / "DONE").read_text() == (other.run_dir / "DONE").read_text()


def test_copy_with_a_blank_submitted_from_the_root_folder_resumes(
    cluster: LocalCluster, my_copy: Path, undisturbed: Training
) -> None:
    line = 'cd / && sbatch --parsable --output="$1/out-%j" "$1/run.sbatch" -- "${@:2}"'
    done = cluster.exec(["bash", "-c", line, "_", str(my_copy), *OVERRIDES])
    job = done.out.strip()
    run = Training(cluster, job, my_copy / "runs" / job, my_copy / f"out-{job}")
    run.wait_step(2 * EVERY + 2)
    worker = run.events("attempt_started")[-1]["nodes"][1]
    cluster.node("kill", worker, silent=True)
    assert run.wait_end() == "done", run.story()
    (incident,) = run.events("incident")
    after = run.events("attempt_started")[-1]
    assert (incident["cause"], incident["node"]) == ("node_lost", worker)
    assert after["resume_step"] >= incident["last_step"] - EVERY
    same_training(run, undisturbed)


CONFIG_ERRORS = {
    "unknown key": (["train.step=5"], "train.steps", 78),
    "impossible size": (["train.global_batch=7"], "train.global_batch", 78),
    "unknown size": (["model.size=8b"], "8b", 78),
    "missing data": (["data.dir=/nowhere"], "prepare.py", 65),
}


@pytest.mark.parametrize("name", CONFIG_ERRORS)
def test_error_of_a_rank_stops_the_run(name: str, cluster: LocalCluster, my_copy: Path) -> None:
    words, said, code = CONFIG_ERRORS[name]
    run = submit(cluster, my_copy, "--", *words)
    assert run.wait_end() == "stopped", run.story()
    assert run.events("stopped")[0]["exit_code"] == code
    (line,) = [line for line in run.output.read_text().splitlines() if "Fix: " in line]
    assert said in line
