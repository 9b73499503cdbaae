"""Kill the supervisor, nodes and ranks at random moments, again and again: it always finishes.

    pytest tests/multinode/test_storm.py --kills 50 --seed 7

The moments are random on purpose: between two instructions of a save, of a restart, of a takeover.
Whatever is hit, the training must end, and be bit for bit the one that nobody disturbed.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.cluster import LocalCluster
from tests.harness.faults import kill_supervisor, signal_rank
from tests.harness.training import Training, submit

pytestmark = [pytest.mark.cluster, pytest.mark.torch]
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"
STEPS_A_KILL = 8
KINDS = ("supervisor", "batch host", "worker", "rank", "rank")


@pytest.fixture
def watch(cluster: LocalCluster, tmp_path: Path) -> Iterator[None]:
    """`muster watch` on the head: without it a storm runs out of nodes."""
    argv = ["muster", "watch", "--interval", "1", "--log", str(tmp_path / "watch.jsonl")]
    argv += ["--state", str(tmp_path / "watch.json")]
    with (tmp_path / "watch.log").open("wb") as log:
        process = subprocess.Popen(
            cluster.exec_argv(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    yield
    process.terminate()
    process.wait(30)


@pytest.fixture
def my_copy(tmp_path: Path) -> Path:
    """The recipe where a user would put it."""
    ignore = shutil.ignore_patterns("runs", "data", "__pycache__")
    return Path(shutil.copytree(RECIPE, tmp_path / "my copy", ignore=ignore))


def train(cluster: LocalCluster, copy: Path, steps: int) -> Training:
    budget = ["budget.no_progress=100"]  # a storm may hit the start of an attempt many times
    words = [f"train.steps={steps}", "checkpoint.every=4", "log.tensorboard=false"]
    return submit(cluster, copy, *budget, "--", *words)


def strike(cluster: LocalCluster, run: Training, kind: str, dice: random.Random) -> str | None:
    """Kill something of a kind; None when it was gone already."""
    attempt = run.events("attempt_started")[-1]
    host = str(run.events("supervisor_started")[-1]["host"])
    try:
        if kind == "supervisor":
            kill_supervisor(run)
            return f"supervisor on {host}"
        if kind == "rank":
            rank = dice.randrange(len(attempt["nodes"]))
            signal_rank(run, rank, signal.SIGKILL)
            return f"rank {rank}"
    except LookupError:
        return None
    node = host if kind == "batch host" else next(n for n in attempt["nodes"] if n != host)
    cluster.node("kill", node, silent=dice.random() < 0.5)
    return f"{kind} {node}"


def ended(run: Training) -> bool:
    return bool(run.events("done") or run.events("stopped"))


def test_storm(
    cluster: LocalCluster, watch: None, my_copy: Path, request: pytest.FixtureRequest
) -> None:
    kills, seed = request.config.getoption("--kills"), request.config.getoption("--seed")
    dice = random.Random(seed)
    steps = STEPS_A_KILL * (kills + 1)
    run = train(cluster, my_copy, steps)
    told: list[str] = []
    while len(told) < kills:
        num_attempts = len(run.events("attempt_started"))
        struck_at = len(told)
        run.wait_event("attempt_started", num_attempts + (1 if told else 2), 240)
        time.sleep(dice.uniform(0, 8))
        if ended(run):
            break
        what = strike(cluster, run, dice.choice(KINDS), dice)
        if what is not None:
            told.append(f"{what} at training step {run.last_step()}")
            print(f"{len(told)}: {told[-1]}", flush=True)
        assert len(told) - struck_at <= 1
    assert run.wait_end(600) == "done", f"{told}\n{run.story()}"
    assert len(told) == kills, f"the training was over after {told}"
    calm = train(cluster, my_copy, steps)
    assert calm.wait_end(600) == "done", calm.story()
    assert run.curve() == calm.curve()
    assert (run.run_dir / "DONE").read_text() == (calm.run_dir / "DONE").read_text()
