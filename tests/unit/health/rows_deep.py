"""Burn-in, row by row, from what its worker prints; test_healthcheck_deep.py runs the worker."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.harness.fake_tools.burn import matmul, order, sums
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row


def says(what: str, text: str, rc: int = 0, *, hangs: bool = False) -> Edit:
    """The worker prints that."""
    return lambda node: node.say("python3", text, words=order(what), rc=rc, hangs=hangs)


def expects(*edits: Edit, **keys: float) -> Edit:
    """The profile has figures."""

    def edit(node: FakeNode) -> None:
        node.profile = replace(node.profile, **keys)  # type: ignore[arg-type]
        for one in edits:
            one(node)

    return edit


def disk(**keys: object) -> Edit:
    """The disk is otherwise."""
    return lambda node: node.parts["disk_speed"].update(keys)


def disk_hangs(node: FakeNode) -> None:
    """It never answers."""
    node.parts["disk_speed"] = None


NO_TORCH = json.dumps({"error": "No module named 'torch'", "missing": True})
HUNG = sums({5: {"error": "died", "hung": True}})
SPLIT = matmul({gpu: {"checksum": "fedcba9876543210"} for gpu in range(4)})
ROWS = [
    Row("right", "deep_matmul", "PASS", when="deep", says="8 devices"),
    Row("a wrong product", "deep_matmul", "FAIL", says("matmul", matmul({5: {"wrong": 1}})),
        when="deep", action="replace", gpu="cuda:5"),
    Row("once other bits", "deep_matmul", "FAIL", says("matmul", matmul({5: {"changed": 3}})),
        when="deep", action="replace", gpu="cuda:5"),
    Row("always other bits", "deep_matmul", "FAIL", says("matmul", matmul({5: {"checksum": "f"}})),
        when="deep", action="replace", gpu="cuda:5", says="otherwise"),
    Row("half of them other bits", "deep_matmul", "FAIL", says("matmul", SPLIT), when="deep",
        rule="deep_matmul.split", action="drain"),
    Row("half an answer", "deep_matmul", "UNKNOWN", says("matmul", matmul({5: {"wrong": None}})),
        when="deep"),
    Row("a process died", "deep_matmul", "UNKNOWN", says("matmul", matmul({5: {"error": "died"}})),
        when="deep"),
    Row("cut", "deep_matmul", "UNKNOWN", says("matmul", matmul()[:200]), when="deep"),
    Row("it hangs", "deep_matmul", "UNKNOWN", says("matmul", "", hangs=True), when="deep"),
    Row("no devices", "deep_matmul", "UNKNOWN", says("matmul", '{"ranks": []}'), when="deep"),
    Row("no torch", "deep_matmul", "SKIP", says("matmul", NO_TORCH), when="deep"),
    Row("no Python", "deep_matmul", "SKIP", lambda n: n.tools.pop("python3"), when="deep"),
    Row("right", "deep_allreduce", "PASS", when="deep", says="361"),
    Row("as fast as expected", "deep_allreduce", "PASS", expects(allreduce_busbw_gb_s=400.0),
        when="deep"),
    Row("too slow", "deep_allreduce", "FAIL", expects(allreduce_busbw_gb_s=450.0), when="deep",
        rule="deep_allreduce.slow", action="drain", says="of 450"),
    Row("one is slow", "deep_allreduce", "FAIL", expects(
        says("allreduce", sums({5: {"gb_s": 12.5}})), allreduce_busbw_gb_s=360.0), when="deep",
        rule="deep_allreduce.slow", action="drain", says="12.5"),
    Row("a wrong sum", "deep_allreduce", "FAIL", says("allreduce", sums({5: {"wrong": 2}})),
        when="deep", action="drain", says="cuda:5"),
    Row("it does not say how fast", "deep_allreduce", "UNKNOWN", says(
        "allreduce", sums({5: {"gb_s": None}})), when="deep"),
    Row("one hangs", "deep_allreduce", "UNKNOWN", says("allreduce", HUNG), when="deep"),
    Row("no torch", "deep_allreduce", "SKIP", says("allreduce", NO_TORCH), when="deep"),
    Row("right", "pair_allreduce", "PASS", when="pair"),
    Row("a wrong sum", "pair_allreduce", "FAIL", says("allreduce", sums({0: {"wrong": 1}})),
        when="pair"),
    Row("too slow", "pair_allreduce", "FAIL", expects(pair_busbw_gb_s=500.0), when="pair",
        rule="pair_allreduce.slow"),
    Row("one hangs", "pair_allreduce", "FAIL", says("allreduce", HUNG), when="pair"),
    Row("all hang", "pair_allreduce", "FAIL", says("allreduce", "", hangs=True), when="pair"),
    Row("the partner closed the line", "pair_allreduce", "FAIL", says("allreduce", sums(
        {0: {"error": "RuntimeError: Connection closed by peer"}})), when="pair"),
    Row("no torch", "pair_allreduce", "SKIP", says("allreduce", NO_TORCH), when="pair"),
    Row("not in a pair", "pair_allreduce", "UNKNOWN", lambda n: n.environ.clear(), when="pair"),
    Row("Slurm does not say who it is", "pair_allreduce", "UNKNOWN", lambda n: n.say(
        "scontrol", rc=1, words="show hostnames"), when="pair"),
    Row("right", "deep_disk", "PASS", when="deep", says="writes 3900 and reads 6900 MB/s"),
    Row("other bytes", "deep_disk", "FAIL", disk(same=False), when="deep", action="replace"),
    Row("too slow", "deep_disk", "FAIL", expects(disk_read_mb_s=8000.0), when="deep",
        rule="deep_disk.slow", action="drain"),
    Row("fast enough", "deep_disk", "PASS", expects(disk_write_mb_s=4000.0), when="deep"),
    Row("it hangs", "deep_disk", "UNKNOWN", disk_hangs, when="deep"),
    Row("full", "deep_disk", "UNKNOWN", disk(error="No space left on device"), when="deep"),
]  # fmt: skip
