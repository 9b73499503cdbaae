"""The step log_rotation with the real logrotate: logs end, daemons write on, others' files stay."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.harness.debs import provide
from tests.harness.fixtures import slurm_here
from tests.harness.private_network import PrivateNetwork
from tests.harness.private_root import PrivateRoot
from tests.harness.small_cluster import CONTROLLER, WORKER, SmallCluster
from tests.lifecycle.test_fabric import put
from tests.lifecycle.test_steps import Machines, only

__all__ = ["slurm_here"]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
]
CHOSEN = only("log_rotation")
LOGS = """
mkdir -p /var/log/muster/create
echo '{}' >/var/log/muster/actions.jsonl
echo yes | tee /var/log/docker.log >/var/log/muster/create/hosts.log
"""
# As on Ubuntu, where others than root may write there.
SHARED = "chgrp adm /var/log; chmod 0775 /var/log; "


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    made = Machines(tmp_path)
    for name in ("head", "n1"):
        provide(made[name], "logrotate", "logrotate")
    return made


def became(out: str) -> list[str]:
    """What became of the step, each time."""
    return re.findall(r"^log_rotation: (\w+)", out, re.MULTILINE)


def ours(machine: PrivateRoot) -> set[str]:
    """Of the files of logrotate; packages of the system have theirs."""
    names = {path.name for path in machine.file("/etc/logrotate.d").iterdir()}
    return {name for name in names if name.startswith(("muster", "slurm"))}


def test_logs_are_rotated_wherever_their_folder_lies(machines: Machines) -> None:
    node = machines["n1"]
    turn = "logrotate -f /etc/logrotate.d/muster; cd /var/log; ls docker.log* muster/*.jsonl*"
    rc, out = node.run(f"{SHARED}{LOGS}{CHOSEN}; {CHOSEN}; {turn}; ls muster/create/hosts*")
    assert rc == 0, out
    assert became(out) == ["changed", "unchanged"]
    assert "insecure" not in out
    rest = out.splitlines()[-4:]
    assert rest == ["docker.log", "docker.log.1.gz", "muster/actions.jsonl.1.gz",
                    "muster/create/hosts.log.1.gz"]  # fmt: skip
    assert ours(node) == {"muster", "slurmd"}
    rc, out = machines["head"].run(CHOSEN)
    assert rc == 0, out
    assert ours(machines["head"]) == {"muster", "slurmctld"}


def test_a_file_that_somebody_has_changed_stays(machines: Machines) -> None:
    own = put(machines["n1"], "/etc/logrotate.d/slurmd", "/var/log/slurm/slurmd.log { daily }\n")
    rc, out = machines["n1"].run(f"{CHOSEN}; {CHOSEN}")
    assert (rc, became(out)) == (0, ["changed", "unchanged"]), out
    assert own.read_text() == "/var/log/slurm/slurmd.log { daily }\n"


def test_what_logrotate_refuses_is_one_line(machines: Machines) -> None:
    put(machines["n1"], "/etc/logrotate.d/a_site", "/var/log/slurm/*.log { daily }\n")
    logs = "mkdir -p /var/log/slurm; echo x >/var/log/slurm/slurmd.log; "
    rc, out = machines["n1"].run(logs + CHOSEN)
    assert rc == 0, out
    assert "log_rotation: failed with exit code 65 (optional: " in out
    assert re.search(r"logrotate refuses a log: slurmd:\d+ duplicate log entry for /var/log/", out)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm_here")
def test_daemons_write_on_in_the_new_file(tmp_path: Path) -> None:
    last = " --only log_rotation"
    look = """
    logrotate -f /etc/logrotate.d/$DAEMON
    pid=$(pgrep -x $DAEMON)
    until ls -l /proc/$pid/fd | grep -q "/$DAEMON.log$"; do sleep 0.1; done
    ! ls -l /proc/$pid/fd | grep "$DAEMON.log.1"
    ls /var/log/slurm
    """
    with PrivateNetwork() as network:
        cluster = SmallCluster(tmp_path, network)
        done = cluster.create(head=CONTROLLER + last, n1=WORKER + last, n2=WORKER + last)
        assert [states["log_rotation"] for states in done.values()] == ["changed"] * 3
        for name, daemon in (("head", "slurmctld"), ("n1", "slurmd")):
            out = cluster.works(name, f"timeout 120 bash -c '{look}'", DAEMON=daemon)
            assert out.splitlines() == [f"{daemon}.log", f"{daemon}.log.1"]
        assert cluster.works("head", "srun -N2 hostname | sort") == "n1\nn2\n"
