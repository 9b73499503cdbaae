"""Reads metrics.jsonl as it grows: how far the run is, and how long a training step takes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

_KEPT = 500


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

    def poll(self) -> None:
        """Take in what was appended since the last call; an unfinished last line waits."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                block = file.read()
        except OSError:
            return  # not there yet, or the storage has a moment; the beats watch for hangs
        whole, newline, _ = block.rpartition(b"\n")
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
        elif self.last_time is not None and now >= self.last_time:
            self.step_times = [*self.step_times[-_KEPT:], now - self.last_time]
        self.last_step, self.last_time = step, now

    def p99_s(self) -> Optional[float]:
        """99th percentile of the training-step time; None until five were seen."""
        if len(self.step_times) < 5:
            return None
        ordered = sorted(self.step_times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
