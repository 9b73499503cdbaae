"""Tensor 2 x pipeline 2 x data 2 on four nodes loses one, swaps to the spare: bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.training import Training, submit

if TYPE_CHECKING:
    from muster.cluster import LocalCluster

# Twice eight processes that import Megatron-Core on two cores: a minute and more.
pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("megatron.core")
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_megatron"
STEPS, EVERY, LIMIT_S = 12, 4, 1200
LAYOUT = ["parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"]
WORDS = [*LAYOUT, f"train.steps={STEPS}", f"checkpoint.every={EVERY}", "log.tensorboard=false"]
PLACES = ["nodes=4", "ranks_per_node=2", "hang.floor_s=300"]


@pytest.fixture(scope="module")
def my_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ignore = shutil.ignore_patterns("runs", "data", "__pycache__")
    return Path(shutil.copytree(RECIPE, tmp_path_factory.mktemp("home") / "mine", ignore=ignore))


def start(cluster: LocalCluster, folder: Path, *words: str) -> Training:
    return submit(cluster, folder, *PLACES, "--", *WORDS, *words, options=["--nodes=5"])


def test_a_lost_node_is_swapped_and_the_weights_are_those_of_the_unbroken_run(
    cluster: LocalCluster, my_copy: Path
) -> None:
    whole = start(cluster, my_copy)
    assert whole.wait_end(LIMIT_S) == "done", whole.story()
    assert sorted(whole.curve()) == list(range(1, STEPS + 1))

    run = start(cluster, my_copy)
    run.wait_step(EVERY + 2, timeout_s=LIMIT_S)
    first = run.events("attempt_started")[-1]["nodes"]
    cluster.node("kill", first[2], silent=True)
    assert run.wait_end(LIMIT_S) == "done", run.story()
    (incident,) = run.events("incident")
    assert (incident["cause"], incident["node"]) == ("node_lost", first[2])
    after = run.events("attempt_started")[-1]
    assert first[2] not in after["nodes"]
    assert len(after["nodes"]) == 4
    assert after["resume_step"] >= EVERY
    assert run.curve() == whole.curve()
    assert (run.run_dir / "DONE").read_text() == (whole.run_dir / "DONE").read_text()


def test_a_layout_that_does_not_fit_stops_the_run_with_the_nearest(
    cluster: LocalCluster, my_copy: Path
) -> None:
    run = start(cluster, my_copy, "parallel.pipeline=3")
    assert run.wait_end() == "stopped", run.story()
    assert run.events("stopped")[0]["exit_code"] == 78
    (line,) = [line for line in run.output.read_text().splitlines() if "Fix: " in line]
    assert "8 ranks are not a multiple of tensor 2 x pipeline 3" in line
    assert "nearest valid: parallel.pipeline=4; parallel.pipeline=2" in line
