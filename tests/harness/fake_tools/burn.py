"""What the torch worker of burn-in finds on a fit node, as `python3` prints it."""

from __future__ import annotations

import json
from typing import Any

from tests.harness.fake_tools.node import FakeNode

NODES = "n3\nn4\n"


def add(node: FakeNode) -> None:
    """Eight GPUs that compute right and fast; this is the first task of a pair."""
    node.say("python3", matmul(), words=order("matmul"))
    node.say("python3", sums(), words=order("allreduce"))
    node.say("scontrol", NODES, words="show hostnames")
    node.parts["disk_speed"] = {"write_mb_s": 3900.0, "read_mb_s": 6900.0, "same": True}
    node.parts["tcp"] = {"gbit_s": 88.5, "told": []}
    node.environ.update(
        SLURM_PROCID="0", SLURM_STEP_NUM_NODES="2", SLURM_STEP_NUM_TASKS="2",
        SLURM_STEP_NODELIST="n[3-4]", SLURM_JOB_ID="17", SLURM_STEP_ID="0",
    )  # fmt: skip


def order(what: str) -> str:
    """How the worker's order begins; its source, which is an argument too, has both words."""
    return f'{{"what": "{what}"'


def matmul(changes: dict[int, dict[str, Any]] | None = None) -> str:
    """Products of matrices; `changes` by device."""
    usual = {"name": "NVIDIA H100 80GB HBM3", "count": 900, "wrong": 0, "changed": 0}
    return _ranks({**usual, "checksum": "0123456789abcdef"}, changes)


def sums(changes: dict[int, dict[str, Any]] | None = None) -> str:
    """An all-reduce."""
    return _ranks({"wrong": 0, "gb_s": 361.0}, changes)


def _ranks(usual: dict[str, Any], changes: dict[int, dict[str, Any]] | None) -> str:
    ranks = [
        {**usual, "device": f"cuda:{gpu}", "rank": gpu, **(changes or {}).get(gpu, {})}
        for gpu in range(8)
    ]
    return json.dumps({"ranks": ranks}) + "\n"
