"""The job that ends a creation: it names who fails; what a killed run left is no hindrance.

The head and the nodes are made by the real steps; see test_slurm_steps.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.fixtures import slurm_here
from tests.harness.private_network import PrivateNetwork
from tests.harness.small_cluster import CONTROLLER, WORKER, SmallCluster, group, only

__all__ = ["slurm_here"]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
    pytest.mark.usefixtures("slurm_here"),
    pytest.mark.slow,
]
LAST = only("validation")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with PrivateNetwork() as network:
        yield SmallCluster(tmp_path, network)


def test_the_last_job_names_the_node_that_fails(cluster: SmallCluster) -> None:
    cluster.create(head=CONTROLLER, n1=WORKER)
    rc, out = cluster.run("head", LAST, MUSTER_NODES_WAIT_S="1")
    assert rc == 75
    assert re.search(r"there are not 2 nodes in service: n2 is \S+", out.splitlines()[-1])
    cluster.create(n2=WORKER)
    cluster.works("n2", "mount -o remount,bind,ro /mnt")
    rc, out = cluster.run("head", LAST)
    assert rc == 1
    assert "the job failed, and alone too: n2: cannot write /mnt" in out.splitlines()[-1]
    assert "n1" not in out.splitlines()[-1]
    cluster.works("n2", "mount -o remount,bind,rw /mnt")
    assert cluster.create(head=LAST)["head"]["validation"] == "changed"


def test_a_job_that_a_killed_run_left_does_not_pass_for_a_users(cluster: SmallCluster) -> None:
    cluster.create(head=CONTROLLER, n1=WORKER, n2=WORKER)
    submit = "sbatch --parsable --chdir=/ --output=/dev/null --wrap 'sleep 600'"
    cluster.works("head", f"{submit} --job-name=muster-validation --nodes=2 --exclusive")
    cluster.wait(lambda: "R" in cluster.works("head", "squeue -h -o %t"), "it runs")
    assert cluster.create(head=LAST)["head"]["validation"] == "changed"
    assert "a job ran on n1 n2" in cluster.log("head", "validation")
    assert cluster.works("head", "squeue -h") == ""


def test_a_number_that_a_job_had_before_is_given_again(cluster: SmallCluster) -> None:
    cluster.describe(group("compute", "n1"))
    cluster.create(head=CONTROLLER, n1=WORKER)
    first = "srun bash -c 'echo $SLURM_JOB_ID'"
    assert cluster.works("head", first) == "1\n"
    forget = "pkill -KILL -x slurmctld; rm /var/spool/slurmctld/job_state*"
    cluster.works("head", f"squeue -h; {forget}")
    cluster.create(head=CONTROLLER)
    out = cluster.works("head", LAST, MUSTER_READY_WAIT_S="5")
    assert "validation: changed" in out
    assert "a job ran on n1\n" in cluster.log("head", "validation")


@pytest.mark.parametrize("point", ["applying", "srun"])
def test_everything_on_the_head_dies(cluster: SmallCluster, point: str) -> None:
    cluster.describe(group("compute", "n1"))
    cluster.create(head=CONTROLLER, n1=WORKER)
    begun = cluster.start("head", LAST)
    if point == "applying":  # before the job
        cluster.wait_until_applying("head", "validation")
    else:
        cluster.works("head", "until pgrep -x srun >/dev/null; do sleep 0.02; done")
    cluster.run("head", "kill -KILL -1")
    begun.communicate()
    assert begun.returncode != 0
    slurmd = cluster.works("n1", "pgrep -x slurmd")
    cluster.create(head=CONTROLLER)
    # Told of the files that it has, slurmd 22.05 may end; then no job gets through its prolog.
    log = cluster["head"].file("/var/log/slurm/slurmctld.log").read_text()
    assert "Processing Reconfiguration Request" not in log
    cluster.works("head", LAST, MUSTER_READY_WAIT_S="5")
    assert cluster.works("n1", "pgrep -x slurmd") == slurmd
    assert "a job ran on n1\n" in cluster.log("head", "validation")
