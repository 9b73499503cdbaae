"""Waits until the machines of a created cluster are nodes, or tells in one line which is not."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.errors import TemporaryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.cluster.cluster import LocalCluster

ON_CREATE = ("env", "MUSTER_FLUSH_S=0", "bash", "/opt/lifecycle/on_create.sh")
_ALL_IDLE = """
for i in {1..100}; do
  [[ $(sinfo -h -N -o %T | sort -u) != idle ]] || exit 0
  sleep 0.1
done"""
_SHUT_DOWN = """
scontrol shutdown slurmctld
for i in {1..300}; do
  pidof slurmctld >/dev/null || exit 0
  sleep 0.1
done
exit 1"""
_LOOK_AGAIN_S = 0.1
_LONGEST_S = 900.0


@dataclass(frozen=True)
class Created:
    """How lifecycle/on_create.sh ended on one machine; `last` is the last line that it said."""

    name: str
    rc: int
    last: str
    out: str


def finish(cluster: LocalCluster, timeout_s: float = _LONGEST_S) -> None:
    """Until every machine has become a node by itself, and Slurm has all of them idle.

    Raises:
        TemporaryError: one has not, with what it said last.
    """
    end = time.monotonic() + timeout_s
    wait_created(cluster, cluster.shape.machines, end - time.monotonic())
    states: dict[str, str] = {}
    while not states or set(states.values()) != {"idle"}:
        if time.monotonic() > end:
            what = f"not all nodes are idle: {states or 'slurmctld does not answer'}"
            fix = f"read the logs in {cluster.folder.logs}"
            raise TemporaryError(f"cluster {cluster.name!r}", what, fix)
        # Looking again and again is cheaper in there: what starts wants the processors.
        cluster.exec(["timeout", "30", "bash", "-c", _ALL_IDLE])
        states = cluster.states()


def shut_down_controller(cluster: LocalCluster) -> None:
    """End slurmctld with all that it knows on its disk, where a job that is done runs for seconds.

    Raises:
        TemporaryError: it does not end.
    """
    done = cluster.exec(["timeout", "60", "bash", "-c", _SHUT_DOWN], timeout_s=90)
    if not done.ok:
        fix = f"read the logs in {cluster.folder.logs}"
        raise TemporaryError(f"cluster {cluster.name!r}", f"slurmctld: {done.reason}", fix)


def wait_booted(cluster: LocalCluster, timeout_s: float) -> None:
    """Until all machines run, on roots of their own.

    Raises:
        TemporaryError: one of them does not.
    """
    end = time.monotonic() + timeout_s
    at = cluster.folder.path / "nodes"
    while late := [
        name for name in cluster.shape.machines if not (at / name / "own_root").exists()
    ]:
        if time.monotonic() > end:
            what = f"does not start within {timeout_s:.0f} s"
            fix = f"read {cluster.folder.logs}/node-{late[0]}.log"
            raise TemporaryError(f"machine {late[0]}", what, fix)
        time.sleep(_LOOK_AGAIN_S)


def wait_created(cluster: LocalCluster, names: Sequence[str], timeout_s: float) -> None:
    """Until the agent of each of these machines is through.

    Raises:
        TemporaryError: on one of them it failed, or does not end.
    """
    end = time.monotonic() + timeout_s
    waiting = list(names)
    while waiting:
        for name in list(waiting):
            rc = exit_code(cluster, name)
            if rc is not None and rc != 0:
                raise _failed(cluster, name, f"with exit code {rc}: {last_line(cluster, name)}")
            if rc == 0:
                waiting.remove(name)
        if waiting and time.monotonic() > end:
            last = last_line(cluster, waiting[0])
            raise _failed(cluster, waiting[0], f"it does not end within {timeout_s:.0f} s: {last}")
        time.sleep(_LOOK_AGAIN_S if waiting else 0)


def exit_code(cluster: LocalCluster, name: str) -> int | None:
    """Of the agent of a machine; None while it is at work."""
    try:
        return int((cluster.folder.path / "nodes" / name / "created").read_text())
    except (OSError, ValueError):
        return None


def last_line(cluster: LocalCluster, name: str) -> str:
    """What the agent of a machine said last."""
    log = cluster.folder.logs / f"create-{name}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _failed(cluster: LocalCluster, name: str, how: str) -> TemporaryError:
    fix = f"repair it, then: muster cluster create --name {cluster.name}"
    return TemporaryError(f"machine {name}", f"is no node, {how}", fix)


def create(cluster: LocalCluster, names: Sequence[str], *words: str) -> dict[str, Created]:
    """Run lifecycle/on_create.sh on machines, on all at the same time.

    Args:
        cluster: which is up.
        names: machines.
        words: further options of `muster create`.
    """
    running = {
        name: subprocess.Popen(
            cluster.exec_argv([*ON_CREATE, *words], node=name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    }
    found = {}
    for name, process in running.items():
        try:
            out = process.communicate(timeout=_LONGEST_S)[0]
        finally:
            process.kill()
        last = next((line for line in reversed(out.splitlines()) if line.strip()), "")
        found[name] = Created(name, process.returncode, last, out)
    return found
