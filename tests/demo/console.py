"""What the demo prints: a line per event with the time since the start, and a live last line."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resume.durable import read_lines
from tests.harness.training import Training

_BAR = 30
WATCH = {"drained": "drained", "replace_started": "being replaced", "returned": "returned"}


@dataclass
class Console:
    """Progress for a person at a terminal; whole lines only where nobody looks live."""

    started: float = field(default_factory=time.monotonic)
    live: bool = field(default_factory=sys.stdout.isatty)
    _shown: int = 0  # events of the journal that were told
    _told_step: int = 0
    _watched: int = 0  # lines of the watch's log that were told

    def say(self, text: str) -> None:
        """One event."""
        self._clear()
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def _clear(self) -> None:
        if self.live:
            print("\r\033[K", end="")

    def follow(self, run: Training, steps: int) -> None:
        """Tell what is new in the run's journal, and how far training is."""
        journal = run.journal
        for entry in journal[self._shown :]:
            text = told(entry)
            if text:
                self.say(text)
        self._shown = len(journal)
        lines = run.metrics
        if not lines:
            return
        last, attempt = lines[-1], run.events("attempt_started")[-1]
        bar = "#" * (_BAR * last["step"] // steps)
        text = (
            f"training step {last['step']:3d}/{steps} [{bar:<{_BAR}}] "
            f"loss {last['loss']:.4f} on {','.join(attempt['nodes'])}"
        )
        if self.live:
            self._clear()
            print(f"  {text}", end="", flush=True)
        elif last["step"] >= self._told_step + 10 or last["step"] < self._told_step:
            self._told_step = last["step"]
            self.say(text)

    def follow_watch(self, log: Path) -> None:
        """Tell what `muster watch` has done to nodes since the last call."""
        actions = read_lines(log)
        for entry in actions[self._watched :]:
            if entry["event"] in WATCH:
                self.say(f"WATCH  {entry['node']}: {WATCH[entry['event']]} ({entry['why']})")
        self._watched = len(actions)

    def new_run(self) -> None:
        """The next journal starts from its first line."""
        self._shown = self._told_step = 0


def told(entry: dict[str, Any]) -> str | None:
    """One event of a journal in words; None for those that say nothing to a watcher."""
    event = entry["event"]
    if event == "attempt_started" and entry["command"] == "train":
        step = entry["resume_step"]
        start = f"from the checkpoint of training step {step}" if step else "from the start"
        return f"attempt {entry['attempt']} on {','.join(entry['nodes'])} {start}"
    if event == "incident":
        return f"FOUND  {entry['cause'].replace('_', ' ')}: {entry['detail']}"
    if event == "first_step" and entry["attempt"] > 2:
        return f"BACK   training goes on at training step {entry['step']}"
    if event == "requeued":
        return "no spare is left in the allocation: the job asks Slurm for a new one"
    if event == "supervisor_started" and entry["reason"] == "takeover":
        return f"the guards brought the job back; new batch host {entry['host']}"
    return None
