"""Reads metrics.jsonl as it grows: how far the run is, and how long a training step takes."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

_KEPT = 500
_CLOCK_STEP_S = 60.0  # so much more than we have waited is no training step, but a clock set ahead


@dataclass
class MetricsTail:
    """Follows the lines of one attempt; other attempts' lines are passed over."""

    path: Path
    attempt: int
    offset: int = 0
    first_step: Optional[int] = None
    first_time: Optional[float] = None
    last_step: Optional[int] = None
    last_time: Optional[float] = None
    step_times: list[float] = field(default_factory=list)  # seconds, newest last
    _waited_s: float = 0.0  # by our own clock, from the lines before to the newest
    _arrived_at: float = field(default_factory=time.monotonic)
    losses: list[tuple[int, float]] = field(default_factory=list)  # since they were taken last

    def poll(self) -> None:
        """Take in what was appended since the last call; an unfinished last line waits."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                block = file.read()
        except OSError:
            return  # not there yet, or the storage has a moment; the beats watch for hangs
        whole, newline, _ = block.rpartition(b"\n")
        if newline:
            arrived_at = time.monotonic()
            self._waited_s, self._arrived_at = arrived_at - self._arrived_at, arrived_at
        self.offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict) and entry.get("attempt") == self.attempt:
                self._note(entry)

    def _note(self, entry: dict[str, Any]) -> None:
        try:
            step, now = int(entry["step"]), float(entry["time"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not math.isfinite(now):
            return
        if self.first_step is None:
            self.first_step, self.first_time = step, now
        elif self.last_time is not None and self._could_have_taken(now - self.last_time):
            self.step_times = [*self.step_times[-_KEPT:], now - self.last_time]
        self.last_step, self.last_time = step, now
        loss = entry.get("loss")
        if isinstance(loss, (int, float)):
            self.losses.append((step, float(loss)))

    def take_losses(self) -> list[tuple[int, float]]:
        """(training step, loss) of the lines since the last call."""
        taken, self.losses = self.losses, []
        return taken

    def _could_have_taken(self, duration_s: float) -> bool:
        """One such step among few would make the limit for hangs hours long."""
        return 0 <= duration_s <= self._waited_s + _CLOCK_STEP_S

    def p99_s(self) -> Optional[float]:
        """99th percentile of the training-step time; None until five were seen."""
        if len(self.step_times) < 5:
            return None
        ordered = sorted(self.step_times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
