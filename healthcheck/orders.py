"""What an administrator orders by typing a reason, in HyperPod's words, and what is nearly one.

`scontrol update nodename=n3 state=fail reason="Action:Replace"` has the node replaced once its job
has ended; with state=down, which ends the job, at once. The texts are exact, as on HyperPod. There
everything else is silently ignored, and people wait for hours; here the log says what to type.
"""

from __future__ import annotations

import difflib
import re
from typing import Literal, Optional

from healthcheck.finding import Action
from muster.slurm import Node

Verb = Literal["replace", "reboot"]

ORDERS: dict[str, Verb] = {"Action:Replace": "replace", "Action:Reboot": "reboot"}
FAIL_STATES = frozenset({"FAIL", "FAILING"})
_ORDERED_STATES = FAIL_STATES | {"DOWN"}
_ALIKE = 0.8


def read(node: Node) -> Optional[Verb]:
    """What is ordered for this node; None: nothing."""
    return ORDERS.get(node.reason) if node.states & _ORDERED_STATES else None


def text(action: Action) -> Optional[str]:
    """The order for what the policy says about a node; None: it is not one for a repair."""
    return {"replace": "Action:Replace", "reboot": "Action:Reboot", "reset": "Action:Reboot"}.get(
        action
    )


def near_miss(node: Node) -> Optional[str]:
    """What is wrong with an order that is meant but not given; None: none is meant."""
    out_of_service = node.states & (_ORDERED_STATES | {"DRAIN"})
    meant = _meant(node) if out_of_service and read(node) is None else None
    if meant is None:
        return None
    command = f'scontrol update nodename={node.name} state=fail reason="{meant}"'
    if node.reason == meant:
        return f"'{meant}' counts with state=fail or state=down only. Fix: {command}"
    return f"its reason '{node.reason}' is no order, it must be exactly '{meant}'. Fix: {command}"


def _meant(node: Node) -> Optional[str]:
    letters = re.sub(r"[^a-z]", "", node.reason.lower())
    for order, verb in ORDERS.items():
        word = re.sub(r"[^a-z]", "", order.lower())
        alike = difflib.SequenceMatcher(None, letters, word).ratio() >= _ALIKE
        if alike or letters.startswith(word) or (letters == verb and node.states & FAIL_STATES):
            return order
    return None
