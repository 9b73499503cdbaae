"""Which node did what when: one lane of segments per node. Pure: data to data.

States: starting, training, waiting (held by the job, not training: an attempt ended, the next has
not begun), spare, lost, unfit. No segment: the node does not belong to the job at that time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from resume.report.attempts import Attempt
from resume.report.incidents import Incident
from resume.report.reading import Event, Records

LOST_BY = {"node_lost": "lost", "batch_host_lost": "lost", "node_unfit": "unfit"}


@dataclass(frozen=True)
class Segment:
    """A node is in one state from `start` to `end`."""

    start: float
    end: float
    state: str


@dataclass(frozen=True)
class Lane:
    """One node's time in the run, with its state in Slurm before and after."""

    node: str
    segments: tuple[Segment, ...]
    before: Optional[str] = None
    after: Optional[str] = None
    replaced: bool = False


class _Change:
    """Orders of magnitude matter: at one moment a loss counts after everything else."""

    def __init__(self, time: float, weight: int, states: dict[str, Optional[str]]) -> None:
        self.key = (time, weight)
        self.time, self.sticky, self.states = time, weight > 1, states
        self.soft = weight == 0


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def list_lanes(
    records: Records,
    attempts: tuple[Attempt, ...],
    incidents: tuple[Incident, ...],
    start: float,
    end: float,
) -> tuple[Lane, ...]:
    """A lane for every node that the job, a fault or the cluster's states name."""
    changes = [
        *_from_events(records.events),
        *_from_attempts(attempts, {i.attempt for i in incidents if i.interrupted}),
        *_from_incidents(incidents),
    ]
    changes.sort(key=lambda change: change.key)
    before, after = records.before or {}, records.after or {}
    nodes = {node for change in changes for node in change.states}
    nodes |= set(before) | set(after) | {f.node for f in records.faults if f.node is not None}
    return tuple(
        Lane(
            node,
            _segments([c for c in changes if node in c.states], node, start, end),
            before.get(node),
            after.get(node),
            node in records.replaced,
        )
        for node in sorted(nodes, key=natural)
    )


def _segments(changes: list[_Change], node: str, start: float, end: float) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    state: Optional[str] = None
    since = start

    def close(until: float) -> None:
        begin = max(since, start)
        if state is not None and until > begin:
            segments.append(Segment(begin, until, state))

    for change in changes:
        new = change.states[node]
        if new == state or (change.soft and (state is None or state in ("lost", "unfit"))):
            continue
        moment = min(change.time, end)
        close(moment)
        state, since = new, moment
    close(end)
    return tuple(segments)


def _from_events(events: tuple[Event, ...]) -> list[_Change]:
    """Allocations and gates; a node once lost stays lost until a new allocation."""
    changes: list[_Change] = []
    held: dict[str, Optional[str]] = {}
    running: tuple[str, ...] = ()
    fresh = True
    for event in events:
        if event.kind in ("requeued", "supervisor_left"):
            changes.append(_Change(event.time, 1, dict.fromkeys(held)))
            fresh, running = True, ()
        elif event.kind == "supervisor_started":
            fresh = fresh or event.text("reason") == "requeued"
            running = ()
        elif event.kind == "allocation":
            nodes, lost = event.names("nodes"), event.names("lost")
            if fresh:
                changes.append(_Change(event.time, 1, dict.fromkeys(held)))
                held = {}
            new: dict[str, Optional[str]] = {n: "spare" for n in nodes if n not in held}
            changes.append(_Change(event.time, 1, new))
            changes.append(_Change(event.time, 2, dict.fromkeys(lost, "lost")))
            held.update(new)
            fresh = False
        elif event.kind == "gate":
            changes.append(_Change(event.time, 2, dict.fromkeys(event.names("unfit"), "unfit")))
        elif event.kind == "attempt_started":
            left = [node for node in running if node not in event.names("nodes")]
            changes.append(_Change(event.time, 0, dict.fromkeys(left, "spare")))
            running = event.names("nodes")
    return changes


def _from_attempts(attempts: tuple[Attempt, ...], hit: set[Optional[int]]) -> list[_Change]:
    changes = []
    for i, attempt in enumerate(attempts):
        changes.append(_Change(attempt.started, 1, dict.fromkeys(attempt.nodes, "starting")))
        if attempt.first_step_time is not None:
            begin = max(attempt.started, attempt.first_step_time - attempt.first_step_s)
            changes.append(_Change(begin, 0, dict.fromkeys(attempt.nodes, "training")))
        over = attempt.number in hit or i + 1 < len(attempts)
        end = attempt.ended if attempt.last_step_time is None else attempt.last_step_time
        if over and end is not None:
            changes.append(_Change(end, 0, dict.fromkeys(attempt.nodes, "waiting")))
    return changes


def _from_incidents(incidents: tuple[Incident, ...]) -> list[_Change]:
    return [
        _Change(incident.began, 2, {incident.node: LOST_BY[incident.cause]})
        for incident in incidents
        if incident.node is not None and incident.cause in LOST_BY
    ]
