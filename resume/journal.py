"""What happened to a run, one fsynced line per event, and the state that follows from it.

The journal is the only memory of the supervisor: it is read again after every requeue, so budgets,
finished commands and the number of the next attempt survive the death of any node. A line that was
torn by a power loss is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from resume import skips
from resume.checkpoint import step_of
from resume.durable import append_line, read_lines

IN_VAIN = frozenset({"node_unfit", "launch_failed"})
"""Causes of a requeue in which the allocation was of no use."""

ENDS = frozenset({"done", "stopped", "supervisor_left", "requeued", "successor_submitted"})
"""Events after which the supervisor is gone on purpose: nobody has to take over."""


# Waiting has a patience of its own, and leaving when asked is no failure if it got somewhere.
_NOT_COUNTED = ("storage", "infrastructure", "slurm_away")


@dataclass(frozen=True)
class Journal:
    """RUN_DIR/journal.jsonl of one supervisor, which signs with its fencing token."""

    path: Path
    token: int

    def append(self, event: str, **facts: Any) -> None:
        """Write one event; it is on disk when this returns."""
        append_line(self.path, {"time": time.time(), "event": event, "token": self.token, **facts})


@dataclass
class State:
    """Where the run stands: the journal, folded."""

    attempts: int = 0
    commands_done: set[str] = field(default_factory=set)
    max_step: int = 0  # farthest training step that any attempt reached
    same_place: int = 0  # software failures in a row without passing the farthest step
    no_progress: int = 0  # failures of any kind in a row, likewise
    in_vain: int = 0  # allocations in a row given back unused, likewise
    last_nodes: list[str] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)  # nodes of failed ranks since the last progress
    suspects: dict[str, tuple[str, str]] = field(default_factory=dict)  # node: (boot id, why)
    last_event: Optional[str] = None
    unfinished_attempt: Optional[int] = None
    finished: bool = False
    verified: set[int] = field(default_factory=set)  # training steps on the shared file system
    archived: set[int] = field(default_factory=set)  # and in the archive
    rollbacks: int = 0
    rolling_back: list[str] = field(default_factory=list)  # not to be picked by the next attempt
    windows: list[skips.Window] = field(default_factory=list)  # batches that are left out
    stepped_in: int = 0  # the last attempt that came to a training step
    changed_in: int = 0  # the last attempt whose settings were others than before
    chosen_for: Optional[str] = None  # job for which a person has chosen a checkpoint
    reopened: bool = False  # and what was done is to be done again

    def note(self, entry: dict[str, Any]) -> None:
        """Take one event in."""
        event, before = entry.get("event"), self.last_event
        self.last_event = event
        self.in_vain += int(event == "requeued" and entry.get("cause") in IN_VAIN)
        if event == "attempt_started":
            self.attempts = max(self.attempts, int(entry["attempt"]))
            self.unfinished_attempt = int(entry["attempt"])
            self.last_nodes = list(entry["nodes"])
            self.rolling_back, self.reopened = [], False
        elif event == "command_done":
            self.commands_done.add(str(entry["command"]))
            self.same_place = self.no_progress = self.in_vain = 0
        elif event == "supervisor_started" and entry.get("reason") == "takeover":
            if self.unfinished_attempt is None:  # else its attempt_ended follows, and counts
                self._count(None, repeatable=False)
        elif event == "requeued" and before in ("gate", "incident"):  # no attempt_ended counts
            self._count(None, repeatable=False)
        elif event == "stopped":  # a person has acted before anything comes after this
            self.same_place = self.no_progress = self.in_vain = 0
            self.blamed, self.suspects = [], {}
        elif event in ("suspect", "suspect_cleared"):
            self._note_suspect(entry)
        elif event == "attempt_ended":
            self.unfinished_attempt = None
            self._note_end(entry)
        elif event == "done":
            self.finished = True
        else:
            self._note_checkpoint(entry)

    def _note_checkpoint(self, entry: dict[str, Any]) -> None:
        event = entry.get("event")
        if event == "checkpoint_verified" and entry["tier"] == "shared":
            self.verified.add(step_of(entry["checkpoint"]))
        elif event == "copied":
            self.archived.add(step_of(entry["checkpoint"]))
        elif event == "first_step":
            self.stepped_in = int(entry["attempt"])
        elif event == "changed":
            self.changed_in = int(entry["attempt"])
        elif event == "checkpoint_chosen":
            self._note_choice(entry)
        elif event == "set_aside":
            self.verified.discard(step_of(entry["checkpoint"]))
        elif event == "rolled_back":
            self.rollbacks += 1
            self.rolling_back = list(entry["checkpoints"])
            self.windows = skips.merged([*self.windows, *skips.fold([entry])])
            self._forget(self.verified, entry)
            self._forget(self.archived, entry)
        elif event == "pruned":
            self._forget(self.verified if entry["tier"] == "shared" else self.archived, entry)

    def _note_choice(self, entry: dict[str, Any]) -> None:
        self.chosen_for, self.reopened, self.finished = str(entry["job"]), True, False
        self.commands_done -= set(entry["commands"])
        self.rolling_back = list(entry["checkpoints"])
        self._forget(self.verified, entry)
        self._forget(self.archived, entry)

    @staticmethod
    def _forget(steps: set[int], entry: dict[str, Any]) -> None:
        steps -= {step_of(name) for name in entry["checkpoints"]}

    def _note_suspect(self, entry: dict[str, Any]) -> None:
        self.suspects.pop(str(entry["node"]), None)
        if entry["event"] == "suspect":
            self.suspects[str(entry["node"])] = (str(entry["boot"]), str(entry["why"]))

    def _note_end(self, entry: dict[str, Any]) -> None:
        cause, last_step = entry.get("cause"), entry.get("last_step")
        got_on = last_step is not None and last_step > self.max_step
        if cause in (None, *_NOT_COUNTED) or (cause == "asked_to_leave" and got_on):
            self._advance(last_step)
        else:
            self._count(last_step, repeatable=bool(entry.get("repeatable")))
        if cause is not None and entry.get("blamed"):
            self.blamed.append(str(entry["blamed"]))

    def _count(self, last_step: Optional[int], *, repeatable: bool) -> None:
        self._advance(last_step)
        self.no_progress += 1
        self.same_place += int(repeatable)

    def _advance(self, last_step: Optional[int]) -> None:
        if last_step is not None and last_step > self.max_step:
            self.max_step = last_step
            self.same_place = self.no_progress = self.in_vain = 0
            self.blamed = []


def fold(entries: Iterable[dict[str, Any]]) -> State:
    """The state after a series of events."""
    state = State()
    for entry in entries:
        state.note(entry)
    return state


def read(path: Path) -> list[dict[str, Any]]:
    """All whole entries of a journal, oldest first; none when there is no journal."""
    return [entry for entry in read_lines(path) if "event" in entry and "time" in entry]
