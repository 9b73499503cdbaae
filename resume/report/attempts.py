"""Attempts and the training they did: what was lost, what was productive. Pure: data to data.

A training step is *lost* when a later attempt of the same command resumed before it, so that it had
to be done again. Productive time is the time of the training steps that were not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Optional

from resume.report.reading import Event, Records, Step


@dataclass(frozen=True)
class Attempt:
    """One launch by the supervisor, as the journal and the metrics tell it."""

    number: int
    stage: int  # which of the job's commands, counted from 0
    command: str
    nodes: tuple[str, ...]
    resume_step: int
    started: float
    host: Optional[str] = None  # the batch host: where its supervisor ran
    first_step_time: Optional[float] = None  # end of its first training step
    first_step_s: float = 0.0  # how long that training step took
    last_step: Optional[int] = None
    last_step_time: Optional[float] = None
    ended: Optional[float] = None
    action: Optional[str] = None  # done, retry, swap, requeue, wait, stop; None: nobody wrote it
    cause: Optional[str] = None
    node: Optional[str] = None
    why: Optional[str] = None
    lost_before: int = 0  # training steps that this attempt has to do again


def list_attempts(records: Records) -> tuple[Attempt, ...]:
    """All attempts in the order of their start."""
    steps: dict[int, list[Step]] = {}
    for step in records.steps:
        steps.setdefault(step.attempt, []).append(step)
    told = _from_journal(records.events)
    attempts = [_with_steps(attempt, steps.get(attempt.number, [])) for attempt in told.values()]
    attempts += [_from_steps(number, mine) for number, mine in steps.items() if number not in told]
    attempts.sort(key=lambda attempt: attempt.started)
    return _with_losses(attempts)


def _from_journal(events: Iterable[Event]) -> dict[int, Attempt]:
    attempts: dict[int, Attempt] = {}
    commands: list[str] = []
    host: Optional[str] = None
    for event in events:
        number = event.integer("attempt")
        if event.kind == "supervisor_started":
            host = event.text("host")
        elif number is None:
            continue
        elif event.kind == "attempt_started":
            command = event.text("command") or ""
            if command not in commands:
                commands.append(command)
            attempts[number] = Attempt(
                number=number,
                stage=commands.index(command),
                command=command,
                nodes=event.names("nodes"),
                resume_step=event.integer("resume_step") or 0,
                started=event.time,
                host=host,
            )
        elif number in attempts:
            attempts[number] = _note(attempts[number], event)
    return attempts


def _note(attempt: Attempt, event: Event) -> Attempt:
    """The attempt with what a later event of it says."""
    last_step = event.integer("last_step")
    if event.kind == "first_step":
        time = event.moment("step_time")
        return replace(attempt, first_step_time=event.time if time is None else time)
    if event.kind == "incident" and last_step is not None:
        return replace(attempt, last_step=last_step, last_step_time=event.moment("last_step_time"))
    if event.kind == "attempt_ended":
        return replace(
            attempt,
            ended=event.time,
            action=event.text("action"),
            cause=event.text("cause"),
            node=event.text("node"),
            why=event.text("why"),
            last_step=attempt.last_step if last_step is None else last_step,
        )
    return attempt


def _with_steps(attempt: Attempt, steps: list[Step]) -> Attempt:
    """The attempt with its first and last training step as the metrics have them."""
    if not steps:
        return attempt
    first, last = steps[0], steps[-1]
    start = first.time if attempt.first_step_time is None else attempt.first_step_time
    start = max(start, attempt.started)
    return replace(
        attempt,
        first_step_time=start,
        first_step_s=min(first.step_s or 0.0, start - attempt.started),
        last_step=max(last.step, attempt.last_step or 0),
        last_step_time=max(last.time, start),
    )


def _from_steps(number: int, steps: list[Step]) -> Attempt:
    """An attempt whose start is missing in the journal (a line torn by a power loss)."""
    first = steps[0]
    started = first.time - (first.step_s or 0.0)
    attempt = Attempt(number, 0, "", (), first.step - 1, started)
    return _with_steps(attempt, steps)


def _with_losses(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    heads: dict[int, int] = {}  # stage -> farthest training step that still counts
    result = []
    for attempt in attempts:
        head = heads.get(attempt.stage, attempt.resume_step)
        result.append(replace(attempt, lost_before=max(0, head - attempt.resume_step)))
        heads[attempt.stage] = max(attempt.resume_step, attempt.last_step or 0)
    return tuple(result)


def mark_lost(attempts: tuple[Attempt, ...], steps: Iterable[Step]) -> tuple[bool, ...]:
    """For each training step whether it was lost: a later attempt resumed before it."""
    limits: dict[int, float] = {}  # attempt -> steps beyond this one were lost
    lowest: dict[int, float] = {}
    for attempt in reversed(attempts):
        limits[attempt.number] = lowest.get(attempt.stage, float("inf"))
        lowest[attempt.stage] = min(limits[attempt.number], attempt.resume_step)
    return tuple(step.step > limits.get(step.attempt, float("inf")) for step in steps)


def productive_s(
    attempts: tuple[Attempt, ...], steps: tuple[Step, ...], lost: Iterable[bool]
) -> float:
    """Sum of the durations of the training steps that were not lost.

    Where only every n-th training step is in the metrics, its duration counts n times; where no
    duration is given, the time since the step before counts.
    """
    before: dict[int, tuple[int, Optional[float]]] = {
        attempt.number: (attempt.resume_step, None) for attempt in attempts
    }
    total = 0.0
    for step, is_lost in zip(steps, lost):
        number, time = before.get(step.attempt, (step.step - 1, None))
        before[step.attempt] = (step.step, step.time)
        if is_lost or step.step <= number:
            continue
        if step.step_s is not None:
            total += step.step_s * (step.step - number)
        elif time is not None:
            total += max(0.0, step.time - time)
    return total


def stages_of(attempts: Iterable[Attempt]) -> Mapping[int, int]:
    """Attempt number -> which of the job's commands it ran."""
    return {attempt.number: attempt.stage for attempt in attempts}
