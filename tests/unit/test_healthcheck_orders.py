"""What an administrator types, and what is made of it."""

from __future__ import annotations

import pytest

from healthcheck import orders
from muster.slurm import Node

ROWS = {
    # (states, reason): (order, the text that was meant)
    ("IDLE+FAIL", "Action:Replace"): ("replace", None),
    ("MIXED+FAIL", "Action:Reboot"): ("reboot", None),
    ("FAILING", "Action:Reboot"): ("reboot", None),
    ("DOWN", "Action:Replace"): ("replace", None),
    ("DOWN+FAIL+NOT_RESPONDING", "Action:Replace"): ("replace", None),
    ("IDLE+DRAIN", "Action:Replace"): (None, "Action:Replace"),
    ("IDLE", "Action:Replace"): (None, None),  # a reason that is left over
    ("IDLE+FAIL", "action:replace"): (None, "Action:Replace"),
    ("IDLE+FAIL", "ACTION:REBOOT"): (None, "Action:Reboot"),
    ("IDLE+FAIL", "Action: Reboot"): (None, "Action:Reboot"),
    ("IDLE+FAIL", "Action:Reboot "): (None, "Action:Reboot"),
    ("IDLE+FAIL", " Action:Reboot"): (None, "Action:Reboot"),
    ("IDLE+FAIL", "Action:Reboot."): (None, "Action:Reboot"),
    ("IDLE+FAIL", "'Action:Reboot'"): (None, "Action:Reboot"),
    ("IDLE+FAIL", "Action-Replace"): (None, "Action:Replace"),
    ("IDLE+FAIL", "ActionReplace"): (None, "Action:Replace"),
    ("IDLE+FAIL", "Action;Replace!"): (None, "Action:Replace"),
    ("IDLE+FAIL", "Action:Replce"): (None, "Action:Replace"),
    ("IDLE+FAIL", "Acton:Reboot"): (None, "Action:Reboot"),
    ("IDLE+FAIL", "Action:Replace the fan is loud"): (None, "Action:Replace"),
    ("IDLE+FAIL", "Replace"): (None, "Action:Replace"),
    ("IDLE+FAIL", "reboot."): (None, "Action:Reboot"),
    ("IDLE+DRAIN", "reboot."): (None, None),  # anybody's note on a drained node
    ("IDLE+DRAIN", "action:reboot"): (None, "Action:Reboot"),
    ("DOWN", "action:reboot"): (None, "Action:Reboot"),
    ("IDLE+FAIL", "fan is loud, replace it on Monday"): (None, None),
    ("IDLE+FAIL", "no action, Bob reboots it"): (None, None),
    ("IDLE+FAIL", ""): (None, None),
    ("DOWN", "Not responding"): (None, None),
    ("IDLE+DRAIN", "muster:gpu_count:hardware:replace shows 7 of 8 GPUs"): (None, None),
}


@pytest.mark.parametrize(("states", "reason"), ROWS)
def test_orders(states: str, reason: str) -> None:
    order, meant = ROWS[states, reason]
    node = Node("n1", frozenset(states.split("+")), "n1", reason=reason)
    assert orders.read(node) == order
    said = orders.near_miss(node)
    assert (said is not None) == (meant is not None), said
    if meant is not None:
        assert str(said).endswith(f'scontrol update nodename=n1 state=fail reason="{meant}"')


def test_the_text_of_an_action_is_read_back() -> None:
    for action, verb in (("replace", "replace"), ("reboot", "reboot"), ("reset", "reboot")):
        text = orders.text(action)  # type: ignore[arg-type]
        assert orders.ORDERS[text or ""] == verb
    assert orders.text("drain") is None
    assert orders.text("none") is None
