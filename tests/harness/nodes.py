"""Nodes of the local cluster: bring all of them back after a test has broken some."""

from __future__ import annotations

import time
from typing import Any

import yaml

from muster.cluster import LocalCluster


def idle(cluster: LocalCluster) -> list[str]:
    """Names of the nodes that Slurm calls idle."""
    return [name for name, state in cluster.states().items() if state == "idle"]


def add_to_site(cluster: LocalCluster, **keys: Any) -> None:
    """Set keys of the cluster's site.yaml, in the place of those that it has."""
    path = cluster.folder.path / "site.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))


def check_until_drained(cluster: LocalCluster, name: str, timeout_s: float = 60.0) -> None:
    """The node's periodic health check now, not at Slurm's next interval, until it has drained it.

    A run of a limited length must not be over before Slurm asks.
    """
    check = str(cluster.folder.path / "hooks" / "health_check.sh")
    deadline = time.monotonic() + timeout_s
    while not cluster.states().get(name, "").startswith("drain"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the health check of {name} has not drained it: {cluster.states()}")
        cluster.exec([check], node=name)


def back_to_service(cluster: LocalCluster, timeout_s: float = 60.0) -> None:
    """Replace or resume whatever is not idle until every node is."""
    deadline = time.monotonic() + timeout_s
    replaced: set[str] = set()
    while True:
        states = cluster.states()
        sick = [name for name, state in states.items() if state != "idle"]
        if states and not sick:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nodes are not back: {states}")
        for name in sick:
            working = states[name].startswith(("completing", "allocated", "mixed"))
            if working and not states[name].endswith("*"):
                continue  # the job that a test has cancelled is still leaving
            if name not in replaced:
                replaced.add(name)
                cluster.node("replace", name)
            else:
                cluster.exec(["scontrol", "update", f"nodename={name}", "state=resume"])
        time.sleep(0.2)
