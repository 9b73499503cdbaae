"""Reads what a run left behind into records: journal, metrics, injected faults, node states.

A run folder is read while it is being written, after power losses and across hosts whose clocks
differ. So torn lines are left out and counted, lines of a supervisor that had already been replaced
are left out of the story, and a clock that steps backwards is put right; each is said in `notes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from muster.errors import DataError
from resume.durable import read_json

JOURNAL, METRICS, FAULTS, NODES = "journal.jsonl", "metrics.jsonl", "faults.jsonl", "nodes.json"
# Hosts agree within a second where a time service runs; more than that backwards is a clock step.
_CLOCK_TOLERANCE_S = 1.0


def number(value: Any) -> Optional[float]:
    """The value as a float, or None when it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _integer(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Event(NamedTuple):
    """A line of the journal; `time` is corrected for clock steps by `shift`."""

    time: float
    kind: str
    shift: float
    fields: Mapping[str, Any]

    def text(self, key: str) -> Optional[str]:
        """A field as text; None when it is missing or empty."""
        value = self.fields.get(key)
        return None if value is None or value == "" else str(value)

    def integer(self, key: str) -> Optional[int]:
        """A field as an integer; None when it is missing or something else."""
        return _integer(self.fields.get(key))

    def moment(self, key: str) -> Optional[float]:
        """A field that holds a time, corrected like the event's own."""
        value = number(self.fields.get(key))
        return None if value is None else value + self.shift

    def names(self, key: str) -> tuple[str, ...]:
        """A field that holds a list of names (or an object keyed by name)."""
        value = self.fields.get(key)
        return tuple(str(v) for v in value) if isinstance(value, (list, tuple, dict)) else ()


class Step(NamedTuple):
    """A line of metrics.jsonl: one training step as one attempt did it."""

    step: int
    loss: Optional[float]
    samples: Optional[str]
    time: float
    step_s: Optional[float]
    attempt: int


class Fault(NamedTuple):
    """A fault that somebody injected on purpose, with the moment of injection."""

    time: float
    name: str
    node: Optional[str]
    kind: str


@dataclass(frozen=True)
class Records:
    """Everything that is known about a run, in the order in which it was written."""

    run_dir: Path
    journal: tuple[Mapping[str, Any], ...]  # every whole line, as it stands
    events: tuple[Event, ...]  # of the supervisors that owned the run when they wrote
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...] = ()
    before: Optional[Mapping[str, str]] = None
    after: Optional[Mapping[str, str]] = None
    replaced: tuple[str, ...] = ()
    done: Optional[Mapping[str, Any]] = None
    notes: tuple[str, ...] = ()


def _lines(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    """The whole JSON objects of a line file; what is torn is counted in a note."""
    values: list[Mapping[str, Any]] = []
    torn = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    value = None
                if isinstance(value, dict):
                    values.append(value)
                elif line.strip():
                    torn += 1
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except OSError as error:
        raise DataError(
            str(path), f"cannot be read: {error}", "check the path and its rights"
        ) from error
    if torn:
        notes.append(f"{path.name}: {torn} unreadable line{'s'[: torn > 1]} left out")
    return values


def order_events(lines: Iterable[Mapping[str, Any]], notes: list[str]) -> tuple[Event, ...]:
    """Journal lines as events: those of replaced supervisors left out, time only rising."""
    events: list[Event] = []
    token, stale, shift = None, 0, 0.0
    for line in lines:
        time, kind, mine = number(line.get("time")), line.get("event"), _integer(line.get("token"))
        if time is None or not isinstance(kind, str):
            continue
        if token is not None and mine is not None and mine < token:
            stale += 1
            continue
        token = token if mine is None else mine
        last = events[-1].time if events else time
        if time + shift < last - _CLOCK_TOLERANCE_S:
            notes.append(
                f"the clock of the journal steps back by {last - time - shift:.1f} s at {kind}: "
                "durations across it are lower bounds"
            )
            shift = last - time
        events.append(Event(max(time + shift, last), kind, shift, line))
    if stale:
        notes.append(f"{stale} journal line{'s'[: stale > 1]} of a replaced supervisor left out")
    return tuple(events)


def order_steps(
    lines: Iterable[Mapping[str, Any]], shifts: Mapping[int, float], notes: list[str]
) -> tuple[Step, ...]:
    """Metrics lines as steps; `shifts` are the clock corrections of the attempts."""
    steps: list[Step] = []
    extra, strange = 0.0, 0
    for line in lines:
        step, time = _integer(line.get("step")), number(line.get("time"))
        if step is None or time is None:
            strange += 1
            continue
        attempt = _integer(line.get("attempt")) or 1
        time += shifts.get(attempt, 0.0)
        last = steps[-1].time if steps else time
        if time + extra < last - _CLOCK_TOLERANCE_S:
            extra = last - time
        elif steps and steps[-1].attempt != attempt and time >= last:
            extra = 0.0  # the journal has put the clock of this attempt right
        samples = line.get("samples")
        steps.append(
            Step(
                step,
                number(line.get("loss")),
                samples if isinstance(samples, str) else None,
                max(time + extra, last),
                number(line.get("step_s")),
                attempt,
            )
        )
    if strange:
        notes.append(f"{METRICS}: {strange} line{'s'[: strange > 1]} without step or time left out")
    return tuple(steps)


def order_faults(lines: Iterable[Any]) -> tuple[Fault, ...]:
    """Injected faults in order of time; objects with the same attributes are taken as well."""
    faults = []
    for item in lines:
        line = item if isinstance(item, Mapping) else vars(item)
        time, node = number(line.get("time")), line.get("node")
        if time is not None:
            kind = str(line.get("kind") or "fault")
            name = str(line.get("name") or kind.replace("_", " "))
            faults.append(Fault(time, name, None if node is None else str(node), kind))
    return tuple(sorted(faults, key=lambda fault: fault.time))


def _states(value: Any) -> Optional[dict[str, str]]:
    if not isinstance(value, Mapping):
        return None
    return {str(node): str(state) for node, state in value.items()}


def read_run(
    run_dir: Path,
    *,
    faults: Optional[Iterable[Any]] = None,
    before: Optional[Mapping[str, Any]] = None,
    after: Optional[Mapping[str, Any]] = None,
) -> Records:
    """Read a run folder; the keyword arguments take precedence over faults.jsonl and nodes.json.

    Raises:
        DataError: there is no journal, so nothing is known about attempts and incidents.
    """
    notes: list[str] = []
    if not (run_dir / JOURNAL).is_file():
        raise DataError(
            str(run_dir),
            f"there is no {JOURNAL} in it",
            "name the RUN_DIR of a run under 'muster run'",
        )
    journal = _lines(run_dir / JOURNAL, notes)
    events = order_events(journal, notes)
    shifts = {
        attempt: event.shift
        for event in events
        if event.kind == "attempt_started" and (attempt := event.integer("attempt")) is not None
    }
    if faults is None:
        faults = _lines(run_dir / FAULTS, notes) if (run_dir / FAULTS).is_file() else []
    nodes = read_json(run_dir / NODES)
    nodes = nodes if isinstance(nodes, dict) else {}
    replaced = nodes.get("replaced")
    done = read_json(run_dir / "DONE")
    return Records(
        run_dir=run_dir,
        journal=tuple(journal),
        events=events,
        steps=order_steps(_lines(run_dir / METRICS, notes), shifts, notes),
        faults=order_faults(faults),
        before=_states(nodes.get("before") if before is None else before),
        after=_states(nodes.get("after") if after is None else after),
        replaced=tuple(str(n) for n in replaced) if isinstance(replaced, (list, dict)) else (),
        done=done if isinstance(done, dict) else None,
        notes=tuple(notes),
    )


def read_baseline(run_dir: Path) -> Records:
    """A run to compare with; a journal is not needed, training steps are.

    Raises:
        DataError: there is not one training step in it.
    """
    if (run_dir / JOURNAL).is_file():
        records = read_run(run_dir)
    else:
        records = Records(run_dir, (), (), order_steps(_lines(run_dir / METRICS, []), {}, []))
    if not records.steps:
        where = str(run_dir / METRICS)
        raise DataError(where, "holds no training step", "name the RUN_DIR of a finished run")
    return records
