"""`muster check --suspect` of a running job: every node is asked by srun beside its ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from muster.cluster import LocalCluster
from tests.harness.nodes import add_to_site

pytestmark = pytest.mark.cluster

XID = "NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def ask(cluster: LocalCluster, job: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and one object a node with the verdict at the end."""
    done = cluster.exec(["muster", "check", "--suspect", "--job", job, "--json"], timeout_s=120)
    return done.rc, [json.loads(line) for line in done.out.splitlines()]


def test_the_node_at_fault_is_named_while_the_job_runs(
    make_cluster: Callable[..., LocalCluster], until: Callable[..., None]
) -> None:
    cluster = make_cluster(nodes=3, settings=(("HealthCheckInterval", "0"),))
    add_to_site(cluster, on_node_command=[])  # so that srun is the only way to a node
    ranks = ["--gpus-per-node=8", "--exclusive", "--wrap", "srun sleep 600"]
    job = cluster.exec(["sbatch", "--parsable", "-N3", "-o", "/dev/null", *ranks]).out.strip()
    until(lambda: f"{job}.0" in cluster.exec(["squeue", "-s", "-h", "-o", "%i"]).out)
    code, (*nodes, verdict) = ask(cluster, job)
    assert (code, verdict["verdict"], verdict["node"]) == (0, "unknown", None), (nodes, verdict)
    assert [(one["node"], one["answered"]) for one in nodes] == [
        ("n1", True), ("n2", True), ("n3", True),
    ]  # fmt: skip
    cluster.node("kernel-line", "n2", text=XID)
    cluster.node("gpu-break", "n2", gpu=3)
    code, (*nodes, verdict) = ask(cluster, job)
    assert (code, verdict["verdict"], verdict["node"]) == (1, "hardware", "n2"), (nodes, verdict)
    assert [bool(one["failed"]) for one in nodes] == [False, True, False]
    assert any("79" in line for line in verdict["evidence"]), verdict
    assert cluster.exec(["squeue", "-h", "-j", job, "-o", "%T"]).out == "RUNNING\n"
    assert set(cluster.states().values()) == {"allocated"}
