"""Trouble while a whole cluster is created: it works in the end, or one line says what is wrong.

Minutes: `nox -s lifecycle` runs it. What one machine alone can show is in test_steps.py,
test_packages.py and test_runner.py.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from muster.cluster import LocalCluster, Shape
from muster.cluster.created import creation
from tests.harness.fixtures import slurm_here
from tests.harness.local_cloud import (
    all_idle,
    all_unchanged,
    in_background,
    job,
    script,
    steps,
    until,
    uploaded,
)
from tests.lifecycle.test_packages import HOLD, build

__all__ = ["slurm_here"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.slow,
]


@pytest.fixture
def held(slurm_here: None) -> Iterator[Callable[..., LocalCluster]]:
    """A function that switches machines on, which then wait for us: held(nodes=1)."""
    made: list[LocalCluster] = []

    def make(**shape: Any) -> LocalCluster:
        one = LocalCluster(
            f"h{os.getpid()}-{len(made)}", Shape(created=True, boot_s=0, **{"nodes": 1, **shape})
        )
        made.append(one)
        one.up(owner_pid=os.getpid(), timeout_s=600, hold=True)
        return one

    yield make
    for one in made:
        one.down()


def describe(cluster: LocalCluster, **changes: Any) -> None:
    path = uploaded(cluster)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def create_one(cluster: LocalCluster, name: str, *words: str) -> creation.Created:
    return creation.create(cluster, [name], *words)[name]


def assert_well(cluster: LocalCluster, done: dict[str, creation.Created]) -> None:
    """All are through, Slurm has them, a job runs on all, and there is nothing left to do."""
    assert {name: one.out for name, one in done.items() if one.rc != 0} == {}
    until(lambda: all_idle(cluster), "all nodes are idle")
    assert len(job(cluster, len(cluster.shape.names))) == len(cluster.shape.names)
    again = creation.create(cluster, cluster.shape.machines)
    assert [one.out for one in again.values() if not all_unchanged(one)] == []


def log(cluster: LocalCluster, name: str, step: str) -> str:
    return script(cluster, name, f"cat /var/log/muster/create/{step}.log")


# What goes wrong on which machine, until a while after the step that meets it has begun.
BEGUN = r"""
ledger=/var/lib/muster/create/ledger.json
begun() { until grep -sA1 "\"$1\"" $ledger | grep -q applying; do sleep 0.2; done; }
"""
LATE = {
    # Somebody's apt holds the lock, a minute long.
    "n1": """
      cat >/run/hold.py
      python3 /run/hold.py /var/lib/dpkg/lock-frontend 900 &
      begun packages
      sleep 60
      kill $!""",
    "n2": """
      mkdir /run/late
      mount --move /fsx /run/late
      begun mounts
      sleep 30
      mount --move /run/late /fsx""",
    # A name server that never answers: each question costs ten seconds.
    "n4": "echo 'nameserver 10.77.0.99' >/etc/resolv.conf; begun mounts; : >/etc/resolv.conf",
    "n6": "mount -o remount,bind,ro /fsx; begun mounts; sleep 30; mount -o remount,bind,rw /fsx",
    "n7": """
      ip address del 10.77.0.17/24 dev eth0
      until pgrep -f 'muster.pyz create' >/dev/null; do sleep 0.2; done
      sleep 30
      ip address add 10.77.0.17/24 dev eth0""",
    "n0": """
      mkdir -p /opt/late
      mv /usr/sbin/mariadbd /opt/late
      printf '#!/bin/bash\\nsleep 20\\nexec /opt/late/mariadbd "$@"\\n' >/usr/sbin/mariadbd
      chmod 755 /usr/sbin/mariadbd""",
}
KILL = r"""
until grep -sq '"state": "applying"' /var/lib/muster/create/ledger.json; do sleep 0.01; done
kill -9 -1
"""


def test_everything_is_late_at_once_and_one_is_killed(held: Callable[..., LocalCluster]) -> None:
    cluster = held(nodes=8, accounting=True)
    build(cluster.folder.path / "lib" / "repo")  # on all machines: a package that none has yet
    describe(cluster, packages=["muster-tiny"])
    for name in cluster.shape.machines:
        source = "deb [trusted=yes] file:/opt/cloud/lib/repo ./"
        forget = "rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*_*"
        script(cluster, name, f"{forget}; echo '{source}' >/etc/apt/sources.list")
    with ExitStack() as troubles, ThreadPoolExecutor(3) as pool:
        for name, text in LATE.items():
            troubles.enter_context(in_background(cluster, name, BEGUN + text, HOLD))
        cluster.node("cut", "n3")
        back = threading.Timer(30, cluster.node, ("uncut", "n3"))
        back.start()
        troubles.callback(back.join)
        script(cluster, "n1", "until [[ -e /run/held ]]; do sleep 0.05; done")
        troubles.enter_context(in_background(cluster, "n5", KILL))
        nodes = pool.submit(creation.create, cluster, cluster.shape.names)
        time.sleep(20)  # slurmctld and the munge key are late too
        head = pool.submit(create_one, cluster, "n0")
        done = {**nodes.result(), "n0": head.result()}
    assert done["n5"].rc != 0  # it was killed; run again:
    done["n5"] = create_one(cluster, "n5")
    assert "waiting for process" in log(cluster, "n1", "packages")
    assert "/fsx is not mounted" in log(cluster, "n2", "mounts")
    assert "cannot be written" in log(cluster, "n6", "mounts")
    assert done["n7"].out.startswith("waiting up to 300 s: this machine: it is none of")
    assert steps(done["n0"])["slurmdbd"] == "changed"
    assert_well(cluster, done)


STATES = r"""
awk '/^  "/ { gsub(/[":{ ]/, ""); name = $0 } /^   "state"/ { gsub(/[",]/, ""); print name, $2 }' \
  /var/lib/muster/create/ledger.json 2>/dev/null || true
"""
BOUNDARY = f"""
states() {{ {STATES} }}
until states | grep -qE "^($STEPS) $POINT$"; do sleep 0.01; done
kill -9 -1
"""


@pytest.mark.parametrize("point", ["applying", "changed"])
def test_killed_at_every_boundary_the_last_run_ends_well(
    held: Callable[..., LocalCluster], point: str
) -> None:
    cluster = held()
    head, node = (steps_of(cluster, machine) for machine in ("n0", "n1"))
    head.remove("validation")  # a job on the node, for which its daemons have to live
    with ThreadPoolExecutor(1) as pool:  # the node needs the head
        kills = pool.submit(killed_everywhere, cluster, "n1", node, point)
        assert killed_everywhere(cluster, "n0", head, point) > 3
        assert kills.result() > 3
    assert_well(cluster, creation.create(cluster, cluster.shape.machines))


def steps_of(cluster: LocalCluster, machine: str) -> list[str]:
    """Names of its steps, in their order."""
    listed = create_one(cluster, machine, "--list").out.splitlines()
    return [line.split()[0] for line in listed]


def killed_everywhere(cluster: LocalCluster, machine: str, names: list[str], point: str) -> int:
    """All that runs on it but process 1 dies, daemons too, when its ledger is at each step's point.

    In the end nothing disturbs it, and these steps are done. Returns the number of kills.
    """
    only = [word for name in names for word in ("--only", name)]
    num_killed = 0
    while names:
        known = f"STEPS='{'|'.join(names)}' POINT={point}"
        with in_background(cluster, machine, f"{known}; {BOUNDARY}"):
            done = create_one(cluster, machine, *only)
        if done.rc == 0:  # the rest had nothing to do
            break
        assert done.rc == 137, done.out
        states = [line.split() for line in script(cluster, machine, STATES).splitlines()]
        reached = {name for name, state in states if state == point} & set(names)
        names = names[max(map(names.index, reached)) + 1 :]
        num_killed += 1
    done = create_one(cluster, machine, *only)
    assert done.rc == 0, done.out
    return num_killed


def test_a_full_disk_is_one_line_and_then_repaired(held: Callable[..., LocalCluster]) -> None:
    cluster = held()
    script(cluster, "n1", "head -c 4G /dev/zero >/ballast || true")
    done = create_one(cluster, "n1")
    assert done.rc in (74, 75)
    assert "Fix: " in done.last
    assert "Traceback" not in done.out
    script(cluster, "n1", "rm /ballast")
    assert_well(cluster, creation.create(cluster, cluster.shape.machines))


def test_a_wrong_address_is_one_line_and_then_repaired(held: Callable[..., LocalCluster]) -> None:
    cluster = held()
    config = cluster.folder.path / "config" / "resource_config.json"
    right = config.read_text()
    config.write_text(right.replace('"10.77.0.11"', '"10.77.0.99"'))
    done = create_one(cluster, "n1", "--wait-s", "2")
    assert done.rc == 75
    assert "it is none of the 2 nodes (addresses 10.77.0.11, name 'ip-10-77-0-11')" in done.last
    config.write_text(right)
    assert_well(cluster, creation.create(cluster, cluster.shape.machines))


def test_a_disk_that_cannot_be_written_is_one_line_and_then_repaired(
    held: Callable[..., LocalCluster],
) -> None:
    cluster = held()
    mounts = json.loads(uploaded(cluster).read_text())["mounts"]
    describe(cluster, mounts=[{**mounts[0], "wait_s": 2}])
    script(cluster, "n1", "mount -o remount,bind,ro /fsx")
    done = create_one(cluster, "n1")
    assert done.rc == 74
    assert "/fsx is mounted, but cannot be written after 2 s" in done.last
    script(cluster, "n1", "mount -o remount,bind,rw /fsx")
    assert_well(cluster, creation.create(cluster, cluster.shape.machines))
