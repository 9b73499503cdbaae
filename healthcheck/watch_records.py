"""What `muster watch` knows about one node, and how that changes when a command has ended.

    silent -> drained -> acting -> booting <-> verifying -> verified -> returning -> (forgotten)
                 ^                    |            |
                 +--- failed, later --+------------+        three failures: gave_up

A node is verified when three verifications in a row have passed, all in one and the same new boot.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal, Optional

from healthcheck import reason as reasons

Phase = Literal[
    "silent", "drained", "acting", "booting", "verifying", "verified", "returning", "gave_up"
]

LOST_REASON = "muster:lost_node:hardware:replace"
MOST_FAILURES = 3
MOST_VERIFIES = 3
PASSES = 3
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0


@dataclass(frozen=True)
class Record:
    """What the watch knows about one node; kept in the state file."""

    phase: Phase
    since: float  # of this phase
    began: float  # of the whole case
    reason: str
    verb: Optional[str] = None  # what was done last: replace or reboot
    boot_before: Optional[float] = None
    boot_id: Optional[str] = None  # that the last verification told
    acted_at: Optional[float] = None
    failures: int = 0
    reboots: int = 0  # that did not help
    verifies: int = 0  # that failed, one after the other
    passes: int = 0  # that passed, one after the other
    not_before: float = 0.0
    said: str = ""  # the last thing that was logged while waiting


@dataclass(frozen=True)
class Ended:
    """How a command of the site ended: what went wrong, if anything, and the boot id it told."""

    problem: Optional[str]
    boot_id: Optional[str] = None


def enter(record: Record, phase: Phase, now: float) -> Record:
    """The record at the beginning of a phase."""
    return replace(record, phase=phase, since=now, said="")


def failed(record: Record, now: float) -> Record:
    """The record after an attempt at this node failed: drained again, for a while left alone."""
    failures = record.failures + 1
    again = enter(record, "drained", now)
    return replace(
        again, failures=failures, verifies=0, passes=0, not_before=now + _pause(failures)
    )


def did_not_help(record: Record, now: float) -> Record:
    """Failed, and the command had been carried out: a reboot is then no cure for this node."""
    again = failed(record, now)
    return replace(again, reboots=record.reboots + (1 if record.verb == "reboot" else 0))


def after_command(record: Record, ended: Ended, now: float) -> Record:
    """The record after replace or reboot ended."""
    return enter(record, "booting", now) if ended.problem is None else failed(record, now)


def after_verify(record: Record, ended: Ended, pause_s: float, now: float) -> Record:
    """The record after a verification: one pass more, tried again later, or a failure."""
    if ended.problem is None:
        same_boot = record.boot_id is None or ended.boot_id == record.boot_id
        passes = (record.passes if same_boot else 0) + 1
        phase: Phase = "verified" if passes >= PASSES else "booting"
        again = enter(replace(record, passes=passes, boot_id=ended.boot_id), phase, now)
        return replace(again, verifies=0, not_before=now + pause_s)
    verifies = record.verifies + 1
    if verifies >= MOST_VERIFIES:
        return did_not_help(record, now)
    waiting = enter(record, "booting", now)
    return replace(waiting, verifies=verifies, passes=0, not_before=now + _pause(verifies))


def after_restart(record: Record) -> Record:
    """The record of a watch that starts again.

    A command whose end nobody saw counts as given, so that nothing is replaced twice; a new boot
    will show, or its absence.
    """
    if record.phase in ("acting", "verifying", "verified"):
        return replace(record, phase="booting", passes=0)
    return record


def judge_verify(reason: str, output: str) -> Ended:
    """What a verification that passed is worth, given the reason of the drain and its output.

    With `--json` it tells the boot id: were it still the one of the fault, nothing has happened
    to the node, whatever time of boot Slurm has worked out.
    """
    told = _boot_id(output)
    known = reasons.read(reason)
    if told and known and known.boot and told.startswith(known.boot):
        return Ended(f"it still runs the boot {known.boot} of the fault", told)
    return Ended(None, told)


def _boot_id(output: str) -> Optional[str]:
    for line in reversed(output.splitlines()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("boot_id"), str):
            return value["boot_id"] or None
    return None


def _pause(count: int) -> float:
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 4 ** (count - 1)))
