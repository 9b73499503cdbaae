"""Slurm itself runs muster around every job: a bad node gets none, and no node is lost to us."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster

Until = Callable[..., None]


@pytest.fixture
def guarded(make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Four nodes with prolog and epilog; without periodic checks, which would drain first."""
    cluster = make_cluster(nodes=4, prolog=True, settings=(("HealthCheckInterval", "0"),))
    shown = cluster.exec(["scontrol", "show", "config"]).out
    assert f"{cluster.folder.path}/hooks/prolog.d/*" in shown
    return cluster


def reason(cluster: LocalCluster, name: str) -> str:
    return cluster.exec(["sinfo", "-N", "-h", "-n", name, "-o", "%E"]).out.strip()


def batch(cluster: LocalCluster, output: Path, script: str, *options: str) -> str:
    argv = ["sbatch", "--parsable", "-N1", "-o", str(output), *options, "--wrap", script]
    return cluster.exec(argv).out.strip()


def test_a_bad_node_is_drained_and_the_job_lands_on_another(
    guarded: LocalCluster, tmp_path: Path, until: Until
) -> None:
    said = tmp_path / "said"
    guarded.node("gpu-break", "n1", gpu=3, how="gone")
    job = batch(guarded, said, "hostname")
    until(lambda: said.exists() and said.read_text())
    assert said.read_text() == "n2\n"
    assert guarded.states()["n1"] == "drained"
    assert reason(guarded, "n1") == "Prolog error"
    # HealthCheckProgram, when it comes by: as slurmd calls it.
    hook = str(guarded.folder.path / "hooks/health_check.sh")
    assert guarded.exec(["env", "-i", "SLURMD_NODENAME=n1", hook], node="n1").rc == 0
    why = reason(guarded, "n1")
    assert why.startswith("muster:gpu_count:hardware:replace shows 7 of 8 GPUs, job=" + job)
    lines = (guarded.folder.path / "log/actions.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["explained"]


def test_a_node_that_breaks_under_a_job_gets_no_other(
    guarded: LocalCluster, tmp_path: Path, until: Until
) -> None:
    go, said = tmp_path / "go", tmp_path / "said"
    batch(guarded, said, f"hostname; until [ -e {go} ]; do sleep 0.1; done; echo end", "-w", "n2")
    until(lambda: said.exists() and said.read_text())
    guarded.node("gpu-break", "n2", gpu=0, how="gone")
    go.touch()
    until(lambda: reason(guarded, "n2") == "Epilog error")
    assert said.read_text() == "n2\nend\n"
    assert guarded.states()["n2"] == "drained"


def test_a_checker_that_is_broken_loses_no_node_and_no_job(
    guarded: LocalCluster, tmp_path: Path, until: Until
) -> None:
    muster = guarded.folder.path / "bin/muster"
    muster.write_text("#!/nowhere/python3\n")
    said = tmp_path / "said"
    for name in ("n1", "n2"):
        batch(guarded, said, "hostname", "-w", name, "--open-mode=append")
    until(lambda: said.exists() and sorted(said.read_text().split()) == ["n1", "n2"])
    until(lambda: set(guarded.states().values()) == {"idle"})
