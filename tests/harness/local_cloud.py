"""Looks at a cluster that lifecycle/ has created, and makes trouble on its machines."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.cluster import LocalCluster, Shape
from muster.cluster.created import creation
from muster.cluster.created.creation import Created

# Everything that steps write, on the machine and on the shared disk: mode, owner, date, content.
# Not of a step's making: logs, and what the runner itself keeps and writes anew each time.
LOOK = r"""
find /etc /usr/local/bin /usr/local/lib/slurm /var/lib/muster/create /var/log/slurm /fsx /root \
  -xdev -type f \
  ! -path '*/ledger*' ! -name '*.log' ! -name step.lock ! -name lock ! -name differences \
  ! -name facts.sh ! -name description.json ! -name 'started.*' \
  -printf '%p %m %u:%g %T@\n' -exec sha256sum {} + 2>/dev/null | sort
"""


def created(name: str, shape: Shape) -> Iterator[LocalCluster]:
    """Created from nothing, and taken down at the end: for fixtures of a module."""
    one = LocalCluster(f"{name}{os.getpid()}", shape)
    try:
        one.up(owner_pid=os.getpid(), timeout_s=600, fresh=True)
        yield one
    finally:
        one.down()


def create(cluster: LocalCluster) -> dict[str, Created]:
    """Run lifecycle/on_create.sh on all machines: how it ended on each."""
    return creation.create(cluster, cluster.shape.machines)


def configuration(cluster: LocalCluster, name: str) -> str:
    """One line for each file of a machine that a step may have written."""
    done = cluster.exec(["bash", "-c", LOOK], node=name, timeout_s=300)
    assert done.out.count("\n") > 20
    return done.out


def all_unchanged(created: Created) -> bool:
    """Whether every step of a machine found nothing to do."""
    return re.search(r"\b(\d+) steps: 0 changed, \1 unchanged", created.last) is not None


def steps(created: Created) -> dict[str, str]:
    """{step: what became of it}."""
    return dict(re.findall(r"^([a-z_]+): (changed|unchanged|failed)", created.out, re.MULTILINE))


def script(cluster: LocalCluster, name: str, text: str, timeout_s: float = 300) -> str:
    """What a script of bash prints on a machine, which ends well."""
    done = cluster.exec(["bash", "-euo", "pipefail", "-c", text], node=name, timeout_s=timeout_s)
    assert done.ok, f"{name}: {done.out}{done.err}"
    return done.out


def job(cluster: LocalCluster, num_nodes: int, user: str = "ana") -> list[str]:
    """Names of the nodes on which a user's job ran a task each, from its log in his home."""
    words = f"-N{num_nodes} --ntasks-per-node=1 --wait --output=job.out --error=job.err"
    command = (
        f"cd && rm -f job.out && sbatch {words} --wrap 'srun hostname' >/dev/null && cat job.out"
    )
    done = cluster.exec(["bash", "-c", command], user=user, timeout_s=600)
    assert done.ok, done.out + done.err
    return sorted(done.out.split())


def until(condition: Callable[[], bool], what: str, limit_s: float = 600) -> None:
    """Poll it until it holds; a generous limit, never a claim about time."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.2)


def all_idle(cluster: LocalCluster) -> bool:
    """Whether Slurm knows every node, and each is idle."""
    states = cluster.states()
    return len(states) == len(cluster.shape.names) and set(states.values()) == {"idle"}


@contextmanager
def in_background(cluster: LocalCluster, name: str, text: str, given: str = "") -> Iterator[None]:
    """A script of bash that goes on, on a machine, while something else is done; it may read."""
    argv = cluster.exec_argv(["bash", "-euo", "pipefail", "-c", text], node=name)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stdin is not None
        process.stdin.write(given.encode())
        process.stdin.close()
        yield
    finally:
        process.terminate()
        process.wait(60)


def uploaded(cluster: LocalCluster) -> Path:
    """The cluster.yaml that the customer uploaded; all machines read this one."""
    return cluster.folder.path / "bundle" / "cluster.yaml"
