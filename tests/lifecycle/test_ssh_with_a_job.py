"""ssh to a compute node only while a job runs there: Slurm, sshd and the PAM modules are real."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import ssh_cluster, ssh_machine
from tests.harness.private_root import PrivateRoot
from tests.harness.ssh_cluster import SshCluster

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("apt-get", "slurmd", "slurmctld", "munged"))),
        reason="needs apt-get and the packages slurmd, slurmctld and munge",
    ),
]
NO_JOB = {
    False: "Access denied: user {} (uid={}) has no active jobs on this node.",
    True: "Access denied by pam_slurm_adopt: you have no active jobs on this node",
}
WORK = """
salloc --quiet --nodes=2 --exclusive bash -c "
  srun --label hostname | sort
  for node in n1 n2; do ssh -o BatchMode=yes \\$node 'echo ssh: \\$(hostname)'; done
"
"""


def until(condition: Callable[[], object], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> PrivateRoot:
    """A machine with the packages."""
    one = ssh_machine.machine(tmp_path_factory.mktemp("installed"))
    problem = ssh_machine.download(one)
    if problem is not None:
        pytest.skip(f"packages cannot be downloaded: {problem}")
    rc, out = one.run(ssh_machine.INSTALL)
    assert rc == 0, out
    return one


@contextlib.contextmanager
def site(folder: Path, installed: PrivateRoot, *, cgroup: bool) -> Iterator[SshCluster]:
    one = SshCluster(folder, installed, cgroup=cgroup)
    try:
        one.up()
        yield one
    finally:
        one.down()
        ssh_cluster.forget(folder)


def job_on_n1(one: SshCluster) -> str:
    rc, out = one.run("head", "sbatch --parsable -w n1 -o /dev/null --wrap 'sleep 600'", "ana")
    assert rc == 0, out
    until(lambda: one.sure("head", "squeue -h -o %T") == "RUNNING\n")
    return out.strip()


def cancel(one: SshCluster, job: str) -> None:
    assert one.run("head", f"scancel {job}", "ana")[0] == 0
    until(lambda: one.sure("head", "squeue -h") == "")


def only_who_has_a_job(one: SshCluster) -> None:
    for number, user in ((5001, "ana"), (5002, "ben")):
        let_in, said = one.ssh(user, "n1")
        assert not let_in
        assert NO_JOB[one.cgroup].format(user, number) in said
        assert "Permanently added" not in said
    assert one.ssh("root", "n1") == (True, "n1\n")
    assert one.ssh("cora", "n1") == (True, "n1\n")
    # A job on n1 opens n1, to its owner.
    job = job_on_n1(one)
    assert one.ssh("ana", "n1", "id -un; pwd; hostname") == (True, "ana\n/mnt/home/ana\nn1\n")
    assert not one.ssh("ana", "n2")[0]
    assert not one.ssh("ben", "n1")[0]
    cancel(one, job)
    let_in, said = one.ssh("ana", "n1")
    assert not let_in
    assert NO_JOB[one.cgroup].format("ana", 5001) in said


def whole_nodes_by_hand(one: SshCluster) -> None:
    assert one.run("head", WORK, "ana") == (0, "0: n1\n1: n2\nssh: n1\nssh: n2\n")
    until(lambda: one.sure("head", "squeue -h") == "")
    assert not one.ssh("ana", "n2")[0]


def no_fault_of_slurm_shuts_an_administrator_out(one: SshCluster) -> None:
    job = job_on_n1(one)
    one.sure("head", "kill $(pgrep -x slurmctld)")
    # Who adopts asks on the node, and needs no controller.
    assert one.ssh("ana", "n1")[0] is one.cgroup
    assert one.ssh("cora", "n1") == (True, "n1\n")
    assert one.ssh("root", "n1") == (True, "n1\n")
    one.sure("head", "while pgrep -x slurmctld; do sleep 0.1; done; slurmctld")
    until(lambda: one.sure("head", "timeout 5 squeue -h -o %T || true") == "RUNNING\n")
    cancel(one, job)


def a_session_ends_with_its_job(one: SshCluster) -> None:
    job = job_on_n1(one)
    places = one.ssh("ana", "n1", "cat /proc/self/cgroup")[1]
    assert re.search(rf"freezer:.*/uid_5001/job_{job}/step_extern", places), places
    assert "job_" not in one.ssh("root", "n1", "cat /proc/self/cgroup")[1]
    session = one.background("ana", "ssh -o BatchMode=yes n1 'echo in; exec sleep 599'")
    assert session.stdout is not None
    assert session.stdout.readline() == "in\n"
    cancel(one, job)
    session.communicate(timeout=120)  # it ends by itself
    assert session.returncode != 0
    until(lambda: one.run("n1", "! pgrep -u ana -fx 'sleep 599'")[0] == 0)


def test_ssh_and_pam_slurm(installed: PrivateRoot, tmp_path: Path) -> None:
    with site(tmp_path, installed, cgroup=False) as one:
        only_who_has_a_job(one)
        whole_nodes_by_hand(one)
        no_fault_of_slurm_shuts_an_administrator_out(one)
        steps = ssh_machine.only("hosts", "users", "homes", "ssh", "ssh_access")
        assert "5 steps: 0 changed, 5 unchanged" in one.sure("n1", steps)


@pytest.mark.slow
@pytest.mark.may_skip("needs cgroups of version 1 that root may write")
def test_ssh_and_pam_slurm_adopt(installed: PrivateRoot, tmp_path: Path) -> None:
    problem = ssh_cluster.no_freezer()
    if problem is not None:
        pytest.skip(problem)
    with site(tmp_path, installed, cgroup=True) as one:
        only_who_has_a_job(one)
        whole_nodes_by_hand(one)
        no_fault_of_slurm_shuts_an_administrator_out(one)
        a_session_ends_with_its_job(one)
