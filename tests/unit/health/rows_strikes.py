"""GPUs with a past, row by row: who was condemned does not come back, who was forgiven does."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

from healthcheck.finding import Action
from healthcheck.strikes import LOCAL, file_of
from tests.harness.fake_tools import strikes
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row, both

SERIAL = "1650323100003"


def struck(days_ago: float, action: Action = "replace") -> Edit:
    """Another node wrote down what became of GPU 3."""
    return lambda node: says({"text": strikes.text(days_ago, action, node.now)})(node)


def says(answer: dict[str, Any] | None) -> Edit:
    """So the shared folder answers about GPU 3."""
    return lambda node: node.notes.update({strikes.shared(SERIAL): answer})


def struck_here(node: FakeNode) -> None:
    """It was this node, before."""
    node.memory[f"{LOCAL}/{file_of(SERIAL)}"] = strikes.text(2, "replace", node.now)


def damaged_here(node: FakeNode) -> None:
    """The file on the node's own disk is cut off."""
    struck_here(node)
    name = f"{LOCAL}/{file_of(SERIAL)}"
    node.memory[name] = node.memory[name][:-1]


def not_shared(node: FakeNode) -> None:
    """The site file names no folder."""
    node.site = replace(node.site, strikes_path=None)


def silent(node: FakeNode) -> None:
    """nvidia-smi never answers."""
    node.say("nvidia-smi", hangs=True)


ROWS = [
    Row("without a past", "gpu_strikes", "PASS", when="return"),
    Row("condemned on another node", "gpu_strikes", "FAIL", struck(3), when="return",
        action="replace", gpu=SERIAL, says="xid.79 on node n7, 3 days ago"),
    Row("condemned, and asked for a job", "gpu_strikes", "FAIL", struck(3), when="gate",
        action="replace", gpu=SERIAL),
    Row("condemned in this node", "gpu_strikes", "FAIL", struck_here, when="return",
        action="replace", gpu=SERIAL),
    Row("condemned here, the folder hangs", "gpu_strikes", "FAIL", both(says(None), struck_here),
        when="return", action="replace"),
    Row("condemned here, no folder", "gpu_strikes", "FAIL", both(not_shared, struck_here),
        when="return", action="replace"),
    Row("condemned 29 days ago", "gpu_strikes", "FAIL", struck(29.9), when="return",
        action="replace"),
    Row("condemned long ago", "gpu_strikes", "PASS", struck(30.1), when="return"),
    Row("only rebooted", "gpu_strikes", "PASS", struck(1, "reboot"), when="return"),
    Row("the folder hangs", "gpu_strikes", "UNKNOWN", says(None), when="return", says="hangs"),
    Row("the folder is not there", "gpu_strikes", "UNKNOWN", says({"error": errno.ENOENT}),
        when="return", says="No such file"),
    Row("somebody else wrote it", "gpu_strikes", "UNKNOWN", says({"error": errno.EPERM}),
        when="return"),
    Row("the child died", "gpu_strikes", "UNKNOWN", says({}), when="return", says="no answer"),
    Row("damaged", "gpu_strikes", "UNKNOWN", says({"text": "[{"}), when="return"),
    Row("no list", "gpu_strikes", "UNKNOWN", says({"text": "{}"}), when="return"),
    Row("damaged here", "gpu_strikes", "UNKNOWN", damaged_here, when="return", says="damaged"),
    Row("no shared folder", "gpu_strikes", "SKIP", not_shared, when="return"),
    Row("nvidia-smi is silent", "gpu_strikes", "UNKNOWN", silent, when="return"),
]  # fmt: skip
