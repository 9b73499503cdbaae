"""Looks at a cluster that lifecycle/ has created."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from muster.cluster import LocalCluster
from muster.cluster.created.creation import Created


def all_unchanged(created: Created) -> bool:
    """Whether every step of a machine found nothing to do."""
    return re.search(r"\b(\d+) steps: 0 changed, \1 unchanged", created.last) is not None


def steps(created: Created) -> dict[str, str]:
    """{step: what became of it}."""
    return dict(re.findall(r"^([a-z_]+): (changed|unchanged|failed)", created.out, re.MULTILINE))


def script(cluster: LocalCluster, name: str, text: str, timeout_s: float = 120) -> str:
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
    done = cluster.exec(["bash", "-c", command], user=user, timeout_s=180)
    assert done.ok, done.out + done.err
    return sorted(done.out.split())


def until(condition: Callable[[], bool], what: str, limit_s: float = 180) -> None:
    """Poll it until it holds; a generous limit, never a claim about time."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.2)


def all_idle(cluster: LocalCluster) -> bool:
    """Whether Slurm knows every node, and each is idle."""
    states = cluster.states()
    return len(states) == len(cluster.shape.names) and set(states.values()) == {"idle"}


def uploaded(cluster: LocalCluster) -> Path:
    """The cluster.yaml that the customer uploaded; all machines read this one."""
    return cluster.folder.path / "bundle" / "cluster.yaml"
