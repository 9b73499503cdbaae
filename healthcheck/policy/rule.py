"""One row of the policy table."""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.finding import Action, Class


@dataclass(frozen=True)
class Rule:
    """Whose fault it is and what is done about it; in `fix` the word {node} is filled in."""

    class_: Class
    action: Action
    fix: str


BACK = "then 'scontrol update nodename={node} state=resume'"
REBOOT = "reboot it ('muster watch' does), " + BACK
REPLACE = "replace it ('muster watch' does)"
REBOOT_THEN_REPLACE = "reboot it ('muster watch' does); again: replace it"
RESET = "reset the GPU or reboot ('muster watch' does)"
