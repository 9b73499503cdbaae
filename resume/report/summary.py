"""The story of a run and its figures, from its records. Pure, no plotting library needed.

    ETTR = productive time / wall-clock time

Productive time is the sum of the durations of the training steps that were not lost. Wall-clock
time runs from the start of the first attempt to the end of the run, queueing included.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from resume.report.attempts import Attempt, list_attempts, mark_lost, productive_s, stages_of
from resume.report.changed import Change, list_changes
from resume.report.headline import terminal_text
from resume.report.incidents import Incident, list_incidents
from resume.report.lanes import Lane, list_lanes
from resume.report.losses import Comparison, compare_repeated, compare_runs
from resume.report.reading import Fault, Records, Step
from resume.report.words import answer, name_incident


@dataclass(frozen=True)
class Summary:
    """All that a report says, as figures; `as_json` is summary.json."""

    recipe: str
    outcome: str  # done, stopped, going on
    why: Optional[str]  # of a stop
    start: float
    end: float
    attempts: tuple[Attempt, ...]
    incidents: tuple[Incident, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[Step, ...]
    lost: tuple[bool, ...]  # for each of `steps`
    productive_s: float
    repeated: Comparison
    records: Records
    changes: tuple[Change, ...] = ()
    baseline: Optional[Comparison] = None
    baseline_steps: tuple[Step, ...] = ()

    @property
    def wall_s(self) -> float:
        """From the start of the first attempt to the end, queueing included."""
        return self.end - self.start

    @property
    def ettr(self) -> Optional[float]:
        """Productive time / wall-clock time; None before anything was started."""
        return self.productive_s / self.wall_s if self.attempts and self.wall_s > 0 else None

    @property
    def interruptions(self) -> tuple[Incident, ...]:
        """The incidents after which training had to come back."""
        return tuple(incident for incident in self.incidents if incident.interrupted)

    @property
    def mttr_s(self) -> Optional[float]:
        """Mean time to recovery of the interruptions from which training came back."""
        times = [i.phases.total_s for i in self.interruptions if i.phases is not None]
        return sum(times) / len(times) if times else None

    @property
    def lost_steps(self) -> int:
        """Training steps that had to be done again, all attempts together."""
        return sum(attempt.lost_before for attempt in self.attempts)

    @property
    def last_step(self) -> Optional[int]:
        """The farthest training step that counts."""
        kept = [step.step for step, lost in zip(self.steps, self.lost) if not lost]
        return max(kept) if kept else None

    @property
    def final_loss(self) -> Optional[float]:
        """The loss of the farthest training step that counts."""
        kept = [step for step, lost in zip(self.steps, self.lost) if not lost]
        return max(kept, key=lambda step: step.step).loss if kept else None

    @property
    def loss_identical(self) -> Optional[bool]:
        """Every loss equals the uninterrupted run's bit for bit; None without such a run.

        False as well while one of the two runs lacks a training step of the other.
        """
        if self.baseline is None:
            return None
        same = self.baseline.losses_identical is True and self.baseline.num_missing == 0
        return same and self.repeated.losses_identical is not False

    @property
    def samples_identical(self) -> Optional[bool]:
        """Like `loss_identical`, for the samples that each training step consumed."""
        if self.baseline is None:
            return None
        same = self.baseline.samples_identical is True and self.baseline.num_missing == 0
        return same and self.repeated.samples_identical is not False

    @property
    def text(self) -> str:
        """The report in a few lines for a terminal."""
        return terminal_text(self)

    def fault_rows(self) -> list[dict[str, Any]]:
        """One row per injected fault; one that no incident answers was not recovered."""
        return [self._fault_row(fault) for fault in self.records.faults]

    def _fault_row(self, fault: Fault) -> dict[str, Any]:
        incident = next((i for i in self.incidents if i.fault is fault), None)
        phases = None if incident is None else incident.phases
        verdict = None if incident is None else incident.verdict
        if incident is not None and not incident.interrupted:
            verdict = "none needed"
        return {
            "name": fault.name,
            "node": fault.node,
            "verdict": verdict,
            "detect_s": None if incident is None else _rounded(incident.detected_at - fault.time),
            "recover_s": None if phases is None else _rounded(phases.total_s),
            "lost_steps": None if incident is None else incident.lost_steps,
            "recovered": incident is not None and incident.recovered,
        }

    def as_json(self) -> dict[str, Any]:
        """summary.json; docs/reference/report.md explains every key."""
        faults = self.fault_rows()
        return {
            "recipe": self.recipe,
            "outcome": self.outcome,
            "why": self.why,
            "faults": faults,
            "recovered": sum(row["recovered"] for row in faults),
            "injected": len(faults),
            "incidents": [_incident_row(incident) for incident in self.incidents],
            "attempts": len(self.attempts),
            "changes": [change.as_json() for change in self.changes],
            "loss_identical": self.loss_identical,
            "samples_identical": self.samples_identical,
            "repeated_steps": self.repeated.num_compared,
            "repeated_identical": self.repeated.losses_identical,
            "lost_steps": self.lost_steps,
            "ettr": _rounded(self.ettr),
            "mttr_s": _rounded(self.mttr_s),
            "productive_s": _rounded(self.productive_s),
            "wall_s": _rounded(self.wall_s),
            "nodes_replaced": len(self.records.replaced),
            "last_step": self.last_step,
            "final_loss": self.final_loss,
            "notes": list(self.records.notes),
        }


def _rounded(value: Optional[float]) -> Optional[float]:
    """Seconds and shares to four places: more would be the noise of unix times as floats."""
    return None if value is None else round(value, 4)


def _incident_row(incident: Incident) -> dict[str, Any]:
    phases = incident.phases
    return {
        "name": name_incident(incident),
        "cause": incident.cause,
        "node": incident.node,
        "attempt": incident.attempt,
        "verdict": incident.verdict,
        "answer": answer(incident),
        "recovered": incident.recovered,
        "detect_s": None if phases is None else _rounded(phases.detect_s),
        "decide_s": None if phases is None else _rounded(phases.decide_s),
        "launch_s": None if phases is None else _rounded(phases.launch_s),
        "first_step_s": None if phases is None else _rounded(phases.first_step_s),
        "recover_s": None if phases is None else _rounded(phases.total_s),
        "lost_steps": incident.lost_steps,
    }


def build_summary(records: Records, baseline: Optional[Records] = None) -> Summary:
    """The whole story of a run; with another run of the same training to compare with."""
    attempts = list_attempts(records)
    incidents = list_incidents(records, attempts)
    lost = mark_lost(attempts, records.steps)
    stages = stages_of(attempts)
    changes = list_changes(records)
    start = attempts[0].started if attempts else _first(records)
    outcome, why, end = _outcome(records, attempts, start)
    compared = None
    if baseline is not None:
        other = stages_of(list_attempts(baseline))
        compared = compare_runs(records.steps, stages, baseline.steps, other)
    return Summary(
        recipe=_recipe(records),
        outcome=outcome,
        why=why,
        start=start,
        end=end,
        attempts=attempts,
        incidents=incidents,
        lanes=list_lanes(records, attempts, incidents, start, end),
        steps=records.steps,
        lost=lost,
        productive_s=productive_s(attempts, records.steps, lost),
        repeated=compare_repeated(records.steps, stages, {c.attempt for c in changes}),
        records=records,
        changes=changes,
        baseline=compared,
        baseline_steps=() if baseline is None else baseline.steps,
    )


def _first(records: Records) -> float:
    return records.events[0].time if records.events else 0.0


def _outcome(
    records: Records, attempts: tuple[Attempt, ...], start: float
) -> tuple[str, Optional[str], float]:
    """(outcome, why it stopped, end): the last word counts, unless an attempt followed."""
    last_start = attempts[-1].started if attempts else start
    for event in reversed(records.events):
        if event.kind == "attempt_started":
            break
        if event.kind == "done":
            return "done", None, max(event.time, start)
        if event.kind == "stopped":
            return "stopped", event.text("why"), max(event.time, start)
    times = [start, last_start]
    times += [event.time for event in records.events[-1:]]
    times += [step.time for step in records.steps[-1:]]
    return ("going on" if records.done is None else "done"), None, max(times)


def _recipe(records: Records) -> str:
    for event in records.events:
        if event.kind == "run_started":
            return event.text("recipe") or Path(event.text("recipe_dir") or "").name or "run"
    return records.run_dir.name or "run"
