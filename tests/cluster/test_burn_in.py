"""`muster burn-in` on a real Slurm: reserved, tested alone and in pairs, marked, given back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cluster import LocalCluster
from tests.harness.nodes import add_to_site

pytestmark = pytest.mark.cluster

Until = Callable[..., None]
SLOW_CABLE = "tc qdisc add dev eth0 root tbf rate 4mbit burst 32kbit latency 400ms"
PROFILE = "gpus: 8\nnvlinks: 0\ngpus_on_pci: false\nslurm_sizes: false\npair_tcp_gbit_s: 0.05\n"


def features(cluster: LocalCluster) -> dict[str, str]:
    shown = cluster.exec(["sinfo", "-N", "-h", "-o", "%N %b"]).out
    return dict(line.split() for line in shown.splitlines())


def test_a_slow_cable_is_found_and_every_node_gets_its_result(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path, until: Until
) -> None:
    cluster = make_cluster(nodes=4, settings=(("HealthCheckInterval", "0"),))
    (tmp_path / "profile.yaml").write_text(PROFILE)
    keys = {"profile": str(tmp_path / "profile.yaml"), "deep_python": ["/nowhere/python3"],
            "deep_disk_mib": 8, "deep_tcp_s": 0.3, "deep_pair_s": 60}  # fmt: skip
    add_to_site(cluster, **keys)
    assert cluster.exec(["on-node", "n3", "bash", "-c", SLOW_CABLE]).ok
    with (tmp_path / "said").open("w") as said:
        burn = subprocess.Popen(
            cluster.exec_argv(["muster", "burn-in", "--wait", "60"]), stdout=said, stderr=said
        )
    until(lambda: set(features(cluster).values()) == {"HealthCheck:InProgress"})
    held = cluster.exec(["scontrol", "show", "reservation", "muster_burn_in"]).out
    assert "Nodes=n[1-4]" in held
    assert "MAINT" in held
    job = tmp_path / "job"
    assert cluster.exec(["sbatch", "-N3", "-o", str(job), "--wrap", "srun hostname"]).ok
    assert cluster.exec(["squeue", "-h", "-n", "wrap", "-o", "%T"]).out == "PENDING\n"
    assert burn.wait(300) == 1, (tmp_path / "said").read_text()
    lines = (tmp_path / "said").read_text()
    assert features(cluster) == {
        "n1": "HealthCheck:Passed", "n2": "HealthCheck:Passed", "n3": "HealthCheck:Failed",
        "n4": "HealthCheck:Passed",
    }, lines  # fmt: skip
    assert "node n3: Failed: pairs: fails with two partners that pass with others" in lines
    reason = cluster.exec(["sinfo", "-N", "-h", "-n", "n3", "-o", "%T %E"]).out
    assert reason.startswith("drained muster:pairs:network:drain ")
    assert "No reservations" in cluster.exec(["scontrol", "show", "reservation"]).out
    until(lambda: job.exists() and sorted(job.read_text().split()) == ["n1", "n2", "n4"])
    passed = cluster.exec(["srun", "-N3", "--constraint=HealthCheck:Passed", "hostname"])
    assert sorted(passed.out.split()) == ["n1", "n2", "n4"]
