"""A GPU breaks under a job and nobody does anything: training goes on, and the node comes back fit.

Every stage is read from what it left: Slurm's states, logs of check and watch, the journal.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.cluster import LocalCluster
from tests.harness.nodes import check_until_drained
from tests.harness.training import Lines, outlast_the_fault, submit

pytestmark = pytest.mark.cluster

Harm = Callable[[LocalCluster, str], tuple[str, str]]
XID = "NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BACK = [*["verify_started", "verify_ended"] * 3, "resumed", "returned"]


def lose_a_gpu(cluster: LocalCluster, name: str) -> tuple[str, str]:
    """One GPU fewer: the check that finds it, and what is done."""
    cluster.node("gpu-break", name, gpu=3, how="gone")
    return "gpu_count", "replace"


def say_an_xid(cluster: LocalCluster, name: str) -> tuple[str, str]:
    """Only the kernel knows yet."""
    cluster.node("kernel-line", name, text=XID)
    return "xid", "reboot"


class Node:
    """One node: every state that Slurm gave it, and what was done about it."""

    def __init__(self, cluster: LocalCluster, name: str, watch_log: Path) -> None:
        self.cluster, self.name, self.states = cluster, name, [""]
        checks = cluster.folder.path / "log/actions.jsonl"
        self._logs = {"check": Lines(checks), "watch": Lines(watch_log)}
        self._logs["check"].read()
        self._before = len(self._logs["check"].values)

    def state(self) -> str:
        """Slurm's state now."""
        now = self.cluster.states().get(self.name)
        if now and now != self.states[-1]:
            self.states.append(now)
        return self.states[-1]

    def shown(self) -> str:
        return self.cluster.exec(["scontrol", "show", "node", self.name]).out

    def boot_id(self) -> str:
        """As the node itself has it; empty while it is off."""
        path = "/proc/sys/kernel/random/boot_id"
        return self.cluster.exec(["on-node", self.name, "cat", path]).out.strip()

    def events(self, log: str) -> list[dict[str, Any]]:
        """What `muster check` or `muster watch` did to it, without the waiting."""
        lines = self._logs[log].read()[self._before if log == "check" else 0 :]
        return [e for e in lines if e.get("node") == self.name and e["event"] != "waits"]

    def serials(self) -> set[str]:
        query = ["nvidia-smi", "--query-gpu=serial", "--format=csv,noheader"]
        return set(self.cluster.exec(query, node=self.name).out.split())


@contextmanager
def watching(cluster: LocalCluster, folder: Path) -> Iterator[Path]:
    """`muster watch` on the head, as a site runs it; its log."""
    files = ["--log", str(folder / "watch.jsonl"), "--state", str(folder / "watch.json")]
    argv = cluster.exec_argv(["muster", "watch", "--interval", "0.5", *files])
    with (folder / "watch.out").open("wb") as out:
        watch = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield folder / "watch.jsonl"
    finally:
        watch.terminate()
        assert watch.wait(60) == 0, (folder / "watch.out").read_text()


@pytest.mark.parametrize("harm", [lose_a_gpu, pytest.param(say_an_xid, marks=pytest.mark.slow)])
def test_from_a_gpu_fault_to_a_fit_node_without_a_person(
    harm: Harm, cluster: LocalCluster, ten_lines: Path, tmp_path: Path
) -> None:
    with watching(cluster, tmp_path) as log:
        outlast_the_fault(ten_lines)
        run = submit(cluster, ten_lines)
        run.wait_step(13)
        host, (one, other) = run.events("supervisor_started")[-1]["host"], first_nodes(run)
        node = Node(cluster, other if one == host else one, log)
        boot, serials = node.boot_id(), node.serials()
        assert node.state() in ("mixed", "allocated")

        check, action = harm(cluster, node.name)
        check_until_drained(cluster, node.name)
        assert node.state().startswith("drain")
        shown = node.shown()
        assert f"Reason=muster:{check}:hardware:{action} " in shown
        assert f" boot={boot[:8]}" in shown
        second = run.wait_event("attempt_started", 2)
        run.wait_step(second["resume_step"] + 1, attempt=second["attempt"])

        def returned() -> bool:
            node.state()
            return [e["event"] for e in node.events("watch")][-1:] == ["returned"]

        run.wait("the node to be back", returned, 120)
        assert run.wait_end() == "done"
        run.wait("the node to be idle", lambda: node.state() == "idle")

    # 1. Drained by the check of the node itself, for hardware.
    (drained,) = node.events("check")
    assert (drained["event"], drained["check"]) == ("drained", check)
    # 2. The same job trained on, on the spare, from a checkpoint, and lost nothing.
    (incident,) = run.events("incident")
    assert (incident["cause"], incident["node"]) == ("node_unfit", node.name), incident
    assert run.events("attempt_ended")[0]["action"] == "swap"
    assert node.name not in second["nodes"]
    assert second["resume_step"] > 0
    assert len(run.events("supervisor_started")) == 1
    assert sorted(run.curve()) == list(range(1, run.last_step() + 1))
    # 3. Replaced or rebooted, checked three times in one new boot, and returned.
    repair = [f"{action}_started", f"{action}_ended"]
    assert [e["event"] for e in node.events("watch")] == [*repair, *BACK]
    assert node.boot_id() not in ("", boot)
    assert (node.serials() == serials) == (action == "reboot")
    assert "Reason=" not in node.shown()
    # 4. In this order.
    started = [e["time"] for e in node.events("watch")]
    assert drained["time"] < incident["time"] < second["time"]
    assert drained["time"] < started[0]
    assert started == sorted(started)
    assert in_order(node.states[2:], "drain", "idle"), node.states
    assert json.loads((tmp_path / "watch.json").read_text()) == {"nodes": {}}


def first_nodes(run: Any) -> list[str]:
    return list(run.events("attempt_started")[0]["nodes"])


def in_order(states: list[str], *wanted: str) -> bool:
    """Whether states that begin so follow each other, with others between."""
    rest = iter(states)
    return all(any(state.startswith(word) for state in rest) for word in wanted)
