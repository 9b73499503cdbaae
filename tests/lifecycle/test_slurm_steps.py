"""A head and nodes on one network become a cluster by the real steps: munge, slurmctld, slurmd.

Every machine has its own disk, processes and address; daemons are those of Debian, jobs are real.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.fixtures import slurm_here
from tests.harness.private_network import PrivateNetwork
from tests.lifecycle.test_steps import CLUSTER, CREATE, Machines, steps

__all__ = ["slurm_here"]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
    pytest.mark.usefixtures("slurm_here"),
]
HEAD, NODES = CLUSTER["groups"]
SMALL = {"sockets": 1, "cores_per_socket": 1, "threads_per_core": 1, "memory_mib": 500}
PLACES = "/etc /mnt /usr/local /run/slurm/conf/"
LOOK = (
    f"find {PLACES} -type f ! -path '*/ledger/*' -printf '%p %m %u:%g %T@\\n' "
    "-exec sha256sum {} + 2>/dev/null | sort"
)


class SmallCluster(Machines):
    """The machines, on a network, with a description that this machine can be."""

    def __init__(self, folder: Path, network: PrivateNetwork) -> None:
        self.network = network
        super().__init__(folder)
        for machine in self.all.values():
            program = machine.file("/usr/local/bin/muster")
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            network.up(machine)

    def describe(self, **changes: Any) -> None:
        """`nodes`, `hardware` and `slurm` are of the compute group; all else is cluster.yaml's."""
        nodes = changes.pop("nodes", ["n1", "n2"])
        addresses = {name: NODES["addresses"][name] for name in nodes}
        hardware = {**SMALL, **changes.pop("hardware", {})}
        group = {**NODES, "nodes": nodes, "addresses": addresses, "hardware": hardware}
        common = {
            "groups": [HEAD, group],
            "partitions": [{"name": "main", "groups": ["n"], "default": True}],
            "scratch": {"kinds": ["folder"], "min_free_gib": 0.01},
        }
        slurm = {"cgroup": False, **changes.pop("slurm", {})}
        super().describe(**{**common, "slurm": slurm, **changes})

    def run(self, name: str, script: str, **env: str) -> tuple[int, str]:
        """A script on one of the machines."""
        return self.network.run(name, script, **env)

    def create(self, *names: str, **env: str) -> dict[str, tuple[int, str]]:
        """Run all steps on these machines at the same time."""
        begun = {name: self.network.start(name, CREATE, **env) for name in names}
        return {name: (one.wait(), one.communicate()[0]) for name, one in begun.items()}

    def created(self, *names: str) -> dict[str, dict[str, str]]:
        """The same, and it must work: {machine: {step: what became of it}}."""
        done = self.create(*names)
        for rc, out in done.values():
            assert rc == 0, out
        return {name: steps(out) for name, (_, out) in done.items()}

    def log(self, name: str, step: str) -> str:
        """What a step said on a machine."""
        return self[name].file(f"/var/log/muster/create/{step}.log").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with PrivateNetwork() as network:
        yield SmallCluster(tmp_path, network)


def test_a_cluster_comes_up_runs_a_job_and_again_not_a_byte_differs(
    cluster: SmallCluster,
) -> None:
    cluster.describe(fabric={"environment": {"NCCL_DEBUG": "WARN", "NCCL_X": "it's $HOME"}})
    done = cluster.created("head", "n1", "n2")
    assert done["head"]["slurmctld"] == done["n1"]["slurmd"] == done["n2"]["slurmd"] == "changed"
    assert "a job ran on n1 n2" in cluster.log("head", "validation")
    rc, out = cluster.run("head", "srun -N2 bash -c 'echo $NCCL_X'; NCCL_X=own srun env")
    assert rc == 0, out
    assert out.splitlines()[:2] == ["it's $HOME"] * 2
    assert {"NCCL_X=own", "NCCL_DEBUG=WARN"} <= set(out.splitlines())
    before = {name: cluster.run(name, LOOK)[1] for name in done}
    assert all(text.count("\n") > 40 for text in before.values())
    pids = "pgrep -x 'munged|slurmctld|slurmd' | sort"
    running = {name: cluster.run(name, pids)[1] for name in done}
    again = cluster.created("head", "n1", "n2")
    assert {name: set(states.values()) for name, states in again.items()} == {
        name: {"unchanged"} for name in done
    }
    assert {name: cluster.run(name, LOOK)[1] for name in done} == before
    assert {name: cluster.run(name, pids)[1] for name in done} == running
