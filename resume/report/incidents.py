"""Incidents and recoveries: what went wrong, what was done, how long each phase took. Pure.

Phases of a recovery, which add up to `recover_s`:

    detect      from the fault (or, where nobody knows it, the last training step) to its detection
    decide      from the detection to the start of the next attempt, queueing included
    launch      from there to the begin of the first training step, failed launches included
    first step  that training step itself
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Optional

from resume.report.attempts import Attempt
from resume.report.reading import Event, Fault, Records


@dataclass(frozen=True)
class Phases:
    """Seconds of each phase of a recovery."""

    detect_s: float
    decide_s: float
    launch_s: float
    first_step_s: float

    @property
    def total_s(self) -> float:
        """From the fault to the end of the first training step after it."""
        return self.detect_s + self.decide_s + self.launch_s + self.first_step_s


@dataclass(frozen=True)
class Incident:
    """Something went wrong, and what became of it."""

    number: int  # counted from 1, in order of time
    cause: str
    node: Optional[str]
    detail: Optional[str]
    attempt: Optional[int]  # that it befell
    began: float  # the fault, else the last training step, else the detection
    detected_at: float
    interrupted: bool  # False: training went on
    verdict: Optional[str]  # retry, swap, requeue, wait, takeover, stop; None: not known
    why: Optional[str] = None
    fault: Optional[Fault] = None
    next_attempt: Optional[int] = None
    new_nodes: tuple[str, ...] = ()  # of the next attempt, that were not in the one before
    phases: Optional[Phases] = None  # None: training has not come back
    lost_steps: int = 0
    role: Optional[str] = None  # of the node: batch host, worker, spare

    @property
    def recovered(self) -> bool:
        """Training came back, or never stopped."""
        return not self.interrupted or self.phases is not None

    @property
    def ended(self) -> Optional[float]:
        """When training was back."""
        return None if self.phases is None else self.began + self.phases.total_s


@dataclass(frozen=True)
class _Seen:
    """An incident before it is joined with the attempts around it."""

    attempt: Optional[Attempt]
    cause: str
    node: Optional[str]
    detail: Optional[str]
    last_step_time: Optional[float]
    detected_at: float
    ends: bool  # it ended the attempt


def list_incidents(records: Records, attempts: tuple[Attempt, ...]) -> tuple[Incident, ...]:
    """All incidents in order of time, joined with faults, attempts and verdicts."""
    seen = sorted(_seen(records, attempts), key=lambda s: s.detected_at)
    faults = match_faults([_place(s) for s in seen], records.faults, attempts)
    joined = (_join(s, fault, records, attempts) for s, fault in zip(seen, faults))
    return tuple(replace(incident, number=i) for i, incident in enumerate(joined, 1))


def _seen(records: Records, attempts: tuple[Attempt, ...]) -> list[_Seen]:
    reported: dict[Optional[int], list[Event]] = {}
    known = {attempt.number for attempt in attempts}
    for event in records.events:
        if event.kind == "incident":
            number = event.integer("attempt")
            reported.setdefault(number if number in known else None, []).append(event)
    seen = [_from_event(event, None, ends=False) for event in reported.get(None, [])]
    for i, attempt in enumerate(attempts):
        after = attempts[i + 1] if i + 1 < len(attempts) else None
        seen += _of_attempt(attempt, after, reported.get(attempt.number, []), records)
    return seen


def _of_attempt(
    attempt: Attempt, after: Optional[Attempt], reported: list[Event], records: Records
) -> list[_Seen]:
    """What befell one attempt; the incident that ended it is made up when nobody wrote it."""
    if attempt.action == "done" or (after is not None and after.stage != attempt.stage):
        return [_from_event(event, attempt, ends=False) for event in reported]
    if not reported:
        made_up = _unreported(attempt, after, records)
        return [] if made_up is None else [made_up]
    same = [
        e for e in reported if e.text("cause") == attempt.cause and e.text("node") == attempt.node
    ]
    main = (same or reported)[-1]
    until = _moment(main)
    over = attempt.action is not None or after is not None
    went_on = attempt.last_step_time is not None and attempt.last_step_time > until
    seen = []
    for event in reported:
        trained_between = any(
            _moment(event) < s.time <= until for s in records.steps if s.attempt == attempt.number
        )
        # Two ranks that fail within one training step are one incident, named by the verdict.
        if event is main or (_moment(event) < until and trained_between):
            ends = event is main and (over or not went_on)
            seen.append(_from_event(event, attempt, ends=ends))
    return seen


def _moment(event: Event) -> float:
    detected = event.moment("detected_at")
    return event.time if detected is None else detected


def _from_event(event: Event, attempt: Optional[Attempt], *, ends: bool) -> _Seen:
    last = event.moment("last_step_time")
    if last is None and attempt is not None and ends:
        last = attempt.last_step_time
    cause = event.text("cause") or "incident"
    return _Seen(
        attempt, cause, event.text("node"), event.text("detail"), last, _moment(event), ends
    )


def _unreported(attempt: Attempt, after: Optional[Attempt], records: Records) -> Optional[_Seen]:
    """An attempt that ended without an incident in the journal; None while it may still run."""
    if attempt.action is not None and attempt.ended is not None:
        return _Seen(
            attempt,
            attempt.cause or "attempt_ended",
            attempt.node,
            attempt.why,
            attempt.last_step_time,
            attempt.ended,
            ends=True,
        )
    if after is None:
        return None
    starts = [
        event
        for event in records.events
        if event.kind == "supervisor_started" and attempt.started <= event.time <= after.started
    ]
    noticed = starts[0].time if starts else after.started
    detail = "nobody was left to write down what happened"
    return _Seen(
        attempt, "supervisor_lost", None, detail, attempt.last_step_time, noticed, ends=True
    )


def _place(seen: _Seen) -> tuple[float, Optional[str], Optional[int]]:
    return seen.detected_at, seen.node, None if seen.attempt is None else seen.attempt.number


def match_faults(
    places: Iterable[tuple[float, Optional[str], Optional[int]]],
    faults: Iterable[Fault],
    attempts: tuple[Attempt, ...],
) -> list[Optional[Fault]]:
    """For each incident (detected at, node, attempt; in order of time) the fault behind it, if any.

    First the newest fault on the same node since the attempt before began; else the oldest fault
    since this attempt began: losing the batch host shows on other nodes too.
    """
    left, matched = list(faults), []
    numbers = [attempt.number for attempt in attempts]
    for detected_at, node, number in places:
        index = numbers.index(number) if number in numbers else 0
        since = attempts[index].started if attempts else 0.0
        earlier = attempts[max(0, index - 1)].started if attempts else 0.0
        before = [f for f in left if f.time <= detected_at]
        same = [f for f in before if f.node is not None and f.node == node and f.time >= earlier]
        other = [f for f in before if f.time >= since]
        fault = same[-1] if same else other[0] if other else None
        matched.append(fault)
        if fault is not None:
            left.remove(fault)
    return matched


def _join(
    seen: _Seen, fault: Optional[Fault], records: Records, attempts: tuple[Attempt, ...]
) -> Incident:
    later = [a for a in attempts if a.started >= seen.detected_at or _is_after(a, seen, attempts)]
    after = later[0] if later else None
    back = next((a for a in later if a.first_step_time is not None), None)
    began = seen.detected_at if seen.last_step_time is None else seen.last_step_time
    began = min(began if fault is None else fault.time, seen.detected_at)
    interrupted = seen.ends or _between(seen, attempts)
    node = seen.node or (None if fault is None else fault.node)
    return Incident(
        number=0,
        cause=seen.cause,
        node=node,
        detail=seen.detail,
        attempt=None if seen.attempt is None else seen.attempt.number,
        began=began,
        detected_at=seen.detected_at,
        interrupted=interrupted,
        verdict=_verdict(seen, after, records) if interrupted else None,
        why=None if seen.attempt is None else seen.attempt.why,
        fault=fault,
        next_attempt=None if after is None or not interrupted else after.number,
        new_nodes=_new_nodes(seen.attempt, after) if interrupted else (),
        phases=_phases(began, seen.detected_at, after, back) if interrupted else None,
        lost_steps=after.lost_before if seen.ends and after is not None else 0,
        role=_role(node, seen.attempt),
    )


def _is_after(attempt: Attempt, seen: _Seen, attempts: tuple[Attempt, ...]) -> bool:
    """Whether an attempt came after the one that the incident ended, whatever the clocks say."""
    if seen.attempt is None or not seen.ends:
        return False
    return attempts.index(attempt) > attempts.index(seen.attempt)


def _between(seen: _Seen, attempts: tuple[Attempt, ...]) -> bool:
    """An incident outside all attempts: nothing trained when it happened."""
    return seen.attempt is None and not any(
        a.started <= seen.detected_at and (a.ended is None or a.ended > seen.detected_at)
        for a in attempts
    )


def _phases(
    began: float, detected_at: float, after: Optional[Attempt], back: Optional[Attempt]
) -> Optional[Phases]:
    if after is None or back is None or back.first_step_time is None:
        return None
    started = max(after.started, detected_at)
    end = max(back.first_step_time, started)
    first = min(back.first_step_s, end - started)
    return Phases(detected_at - began, started - detected_at, end - started - first, first)


def _new_nodes(before: Optional[Attempt], after: Optional[Attempt]) -> tuple[str, ...]:
    if before is None or after is None:
        return ()
    return tuple(node for node in after.nodes if node not in before.nodes)


def _verdict(seen: _Seen, after: Optional[Attempt], records: Records) -> Optional[str]:
    """What the supervisor decided; after its own death, what its successor is."""
    if seen.ends and seen.attempt is not None and seen.attempt.action is not None:
        return seen.attempt.action
    until = float("inf") if after is None else after.started
    for event in records.events:
        if seen.detected_at <= event.time <= until:
            if event.kind == "stopped":
                return "stop"
            if event.kind == "requeued":
                return "requeue"
            if event.kind == "supervisor_started" and event.text("reason") == "requeued":
                return "requeue"
            if event.kind == "supervisor_started" and event.text("reason") == "takeover":
                return "takeover"
    return None


def _role(node: Optional[str], attempt: Optional[Attempt]) -> Optional[str]:
    if node is None or attempt is None:
        return None
    if node == attempt.host:
        return "batch host"
    return "worker" if node in attempt.nodes else "spare"
