"""Nodes resume from their own disks; one that was replaced has an empty one, and misses nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import processes
from tests.harness.training import submit

if TYPE_CHECKING:
    from muster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]  # ./run multinode


def test_a_replaced_node_falls_back_to_the_shared_copy(
    cluster: LocalCluster, ten_lines: Path
) -> None:
    """Rank 0 writes all of this recipe's checkpoints, and runs on the batch host."""
    disk = cluster.folder.path / "local"
    run = submit(cluster, ten_lines, "checkpoints.local=true", "hang.floor_s=60", "--", "60")
    run.wait_step(12)
    processes.send(lambda: processes.ranks(run), "rank", signal.SIGSTOP)
    newest, (first, *_) = run.checkpoints()[0].name, run.events("attempt_started")[0]["nodes"]

    def copied() -> bool:
        return cluster.exec(["bash", "-c", f"test -d {disk}/muster-*/*/{newest}"], node=first).ok

    run.wait("a copy of the newest checkpoint", copied)
    processes.signal_rank(run, 0, signal.SIGKILL)
    second = run.wait_event("attempt_started", 2)
    assert (second["resume_step"], second["resume_local"]) == (int(newest[5:]), 1)
    run.wait("rank 0", lambda: processes.ranks(run, 0))
    loads = {env["RANK"]: env["MUSTER_RESUME"] for _, env in processes.of_job(run) if "RANK" in env}
    assert loads["0"].startswith(f"{disk}/muster-")
    assert loads.get("1", str(run.run_dir)).startswith(str(run.run_dir))
    cluster.node("replace", first)
    third = run.wait_event("attempt_started", 3)
    assert third["resume_local"] == 0
    assert third["resume_step"] >= second["resume_step"]
    assert run.wait_end() == "done", run.story()
    assert sorted(run.curve()) == list(range(1, 61))
