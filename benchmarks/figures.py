"""Samples to medians, limits and a table: pure functions of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One way of keeping a job going, one fault, all its samples.

    Attributes:
        way: who recovers, such as "muster" or "torchrun".
        fault: what was broken.
        samples: seconds from the fault to the first training step after it; None: not in time.
        limit_s: longest median that is promised; None: nothing is.
        limit_text: what the limit is made of.
        phases: {part: seconds of every round} of the recovery, in order.
    """

    way: str
    fault: str
    samples: Sequence[float | None]
    limit_s: float | None = None
    limit_text: str = ""
    phases: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """Median, a recovery that did not come counting as longer than any."""
        ordered = sorted(float("inf") if s is None else s for s in self.samples)
        middle = statistics.median_high(ordered) if ordered else float("inf")
        return None if middle == float("inf") else round(middle, 2)

    @property
    def met(self) -> bool | None:
        """Whether the promise was kept; None: there is none."""
        if self.limit_s is None:
            return None
        return self.median is not None and self.median <= self.limit_s

    def as_json(self) -> dict[str, Any]:
        """Plain data, unrounded samples included."""
        return {
            "way": self.way,
            "fault": self.fault,
            "samples_s": list(self.samples),
            "median_s": self.median,
            "limit_s": self.limit_s,
            "limit": self.limit_text,
            "met": self.met,
            "phases_s": {name: statistics.median(values) for name, values in self.phases.items()},
        }


def seconds(value: float | None) -> str:
    """A figure for a person."""
    return "never" if value is None else f"{value:.1f}"


def table(rows: Sequence[Row], floor_s: float) -> str:
    """A Markdown table; `x floor` is the ratio to a cold start from the same checkpoint."""
    lines = [
        "| way | fault | s, median | of | x floor | limit | met |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = "" if row.median is None else f"{row.median / floor_s:.1f}"
        limit = "" if row.limit_s is None else f"{row.limit_s:.1f} ({row.limit_text})"
        met = {None: "", True: "yes", False: "NO"}[row.met]
        of = ", ".join(seconds(sample) for sample in row.samples)
        cells = (row.way, row.fault, seconds(row.median), of, ratio, limit, met)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def phase_table(rows: Sequence[Row]) -> str:
    """Where the time of a recovery goes, medians in seconds."""
    lines = []
    for row in rows:
        if row.phases:
            parts = (f"{name} {statistics.median(v):.2f}" for name, v in row.phases.items())
            lines.append(f"{row.way}, {row.fault}: {', '.join(parts)}")
    return "\n".join(lines)


PARTS = {
    "incident": "detect",
    "attempt_ended": "clean",
    "requeued": "ask",
    "supervisor_started": "scheduler",
    "gate": "gate",
    "attempt_started": "pick",
}


def phases(
    journal: Sequence[Mapping[str, Any]], fault_at: float, back_at: float
) -> dict[str, float]:
    """Where the first recovery after a fault spent its time, from the journal's own events.

    Returns:
        {part: seconds}, in order; they add up to the time from the fault to the next training step.
        `scheduler` ends with the new supervisor: Slurm's part. `start`: Python, torch, the ranks.
    """
    marks = [
        (float(entry.get("detected_at") or entry["time"]), PARTS[str(entry["event"])])
        for entry in journal
        if entry["event"] in PARTS
    ]
    found: dict[str, float] = {}
    last = fault_at
    # By time: what the guards saw is told later, by the next supervisor.
    for at, name in [*sorted(m for m in marks if fault_at < m[0] < back_at), (back_at, "start")]:
        found[name] = found.get(name, 0.0) + at - last
        last = at
    return found
