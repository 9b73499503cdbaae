"""Faults on a real Slurm, with the bash recipe: is the right thing done, and nothing lost?"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.faults import kill_supervisor, signal_rank
from tests.harness.training import Training, submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster
STEPS, EVERY = 60, 5
LONG = 110  # for faults that take seconds to be seen


def start(
    cluster: LocalCluster, recipe: Path, *words: str, steps: int = STEPS, **options: Any
) -> Training:
    """A running job that has passed its first checkpoint."""
    run = submit(cluster, recipe, *words, "--", str(steps), **options)
    run.wait_step(EVERY + 3)
    return run


def nodes_of(run: Training) -> list[str]:
    """Nodes of the newest attempt."""
    return list(run.events("attempt_started")[-1]["nodes"])


def kill_batch_host(cluster: LocalCluster, run: Training) -> None:
    cluster.node("kill", run.events("supervisor_started")[-1]["host"])


FAULTS: dict[str, tuple[Callable[[LocalCluster, Training], None], str, str]] = {
    # name: (what is done, cause in the journal, action)
    "worker loses power": (lambda c, r: c.node("kill", nodes_of(r)[1]), "node_lost", "swap"),
    "worker vanishes silently": (
        lambda c, r: c.node("kill", nodes_of(r)[1], silent=True),
        "node_lost",
        "swap",
    ),
    "cable of a worker is cut": (lambda c, r: c.node("cut", nodes_of(r)[1]), "node_lost", "swap"),
    "worker freezes": (lambda c, r: c.node("freeze", nodes_of(r)[1]), "node_lost", "swap"),
    "GPU falls off the bus": (
        lambda c, r: c.node("gpu-break", nodes_of(r)[1], gpu=3),
        "node_unfit",
        "swap",
    ),
    "batch host loses power": (kill_batch_host, "batch_host_lost", "requeue"),
    "supervisor is killed": (lambda _, r: kill_supervisor(r), "supervisor_lost", "requeue"),
    "rank is killed": (
        lambda _, r: signal_rank(r, 1, signal.SIGKILL),
        "rank_failed",
        "retry",
    ),
    "rank hangs": (lambda _, r: signal_rank(r, 1, signal.SIGSTOP), "hang", "retry"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_survived(name: str, cluster: LocalCluster, ten_lines: Path) -> None:
    fault, cause, action = FAULTS[name]
    run = start(cluster, ten_lines, steps=LONG)
    fault(cluster, run)
    assert run.wait_end() == "done", run.story()
    incident = run.events("incident")[0]
    ended = next(e for e in run.events("attempt_ended") if e["cause"] is not None)
    assert (incident["cause"], ended["action"]) == (cause, action), run.story()
    assert sorted(run.curve()) == list(range(1, LONG + 1))
    after = run.events("attempt_started")[1]
    if cause == "node_unfit":  # it was asked to leave, and saved: nothing is lost
        assert after["resume_step"] == incident["last_step"]
    else:
        assert after["resume_step"] % EVERY == 0
        assert after["resume_step"] >= max(EVERY, incident["last_step"] - EVERY)
    if cause in ("node_lost", "node_unfit", "batch_host_lost"):
        assert incident["node"] not in after["nodes"]


def test_no_spare_left_means_a_new_allocation(cluster: LocalCluster, ten_lines: Path) -> None:
    run = start(cluster, ten_lines, options=["--nodes=2"])
    cluster.node("kill", nodes_of(run)[1])
    assert run.wait_end() == "done", run.story()
    assert [e["action"] for e in run.events("attempt_ended")] == ["requeue", "done"]
    assert run.events("supervisor_started")[-1]["reason"] == "requeued"
    assert sorted(run.curve()) == list(range(1, STEPS + 1))


def test_loss_of_the_only_node_is_survived(cluster: LocalCluster, ten_lines: Path) -> None:
    run = start(cluster, ten_lines, "nodes=1", options=["--nodes=1"])
    cluster.node("kill", nodes_of(run)[0])
    assert run.wait_end() == "done", run.story()
    assert sorted(run.curve()) == list(range(1, STEPS + 1))


def test_two_faults_in_a_row(cluster: LocalCluster, ten_lines: Path) -> None:
    run = start(cluster, ten_lines, steps=LONG)
    cluster.node("kill", nodes_of(run)[1])
    run.wait_event("first_step", 2)
    signal_rank(run, 0, signal.SIGKILL)
    run.wait_event("first_step", 3)
    kill_batch_host(cluster, run)
    assert run.wait_end() == "done", run.story()
    assert sorted(run.curve()) == list(range(1, LONG + 1))
    assert len(run.events("incident")) == 3


def test_time_limit_saves_and_requeues(cluster: LocalCluster, ten_lines: Path) -> None:
    run = start(cluster, ten_lines)
    before = run.last_step()
    cluster.exec(["scancel", "--batch", "--signal=USR1", run.job])  # as --signal=B:USR1@180 does
    assert run.wait_end() == "done", run.story()
    first, second = run.events("attempt_started")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert second["resume_step"] >= before  # nothing lost: it saved when asked
    assert len({m["step"] for m in run.metrics}) == len(run.metrics)  # nothing done twice


def test_cancelled_job_stays_cancelled(cluster: LocalCluster, ten_lines: Path) -> None:
    run = start(cluster, ten_lines)
    run.cancel()
    assert run.state() == "CANCELLED"
    assert not run.events("requeued")
    assert not list(run.run_dir.glob("rescues/*.json"))
    again = submit(cluster, ten_lines, "--", str(STEPS), run_dir=run.run_dir)
    assert again.wait_end() == "done"
    assert again.events("attempt_started")[1]["resume_step"] > 0
    assert sorted(again.curve()) == list(range(1, STEPS + 1))


def test_requeue_by_an_admin_continues(cluster: LocalCluster, ten_lines: Path) -> None:
    run = start(cluster, ten_lines)
    cluster.exec(["scontrol", "requeue", run.job])
    assert run.wait_end() == "done", run.story()
    assert run.events("attempt_started")[1]["resume_step"] > 0
    assert sorted(run.curve()) == list(range(1, STEPS + 1))
