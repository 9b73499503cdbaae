"""From what a run left behind to its row in the table, and what is wrong with it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resume.report import Summary
from tests.faults.fault import Expected


@dataclass(frozen=True)
class Row:
    """One fault on one recipe: what came of it."""

    area: str
    fault: str
    emulates: str
    recipe: str
    expected: str
    end: str = "no end"  # done or stopped
    cause: str | None = None  # of the first incident; None: there was none
    action: str | None = None
    why: str | None = None
    exit_code: int | None = None  # of a stop
    detect_s: float | None = None
    decide_s: float | None = None
    launch_s: float | None = None
    first_step_s: float | None = None
    recover_s: float | None = None
    attempts: int = 0
    lost_steps: int = 0
    losses_equal: bool | None = None  # None: cannot be said
    weights_equal: bool | None = None
    samples_equal: bool | None = None
    commands: Mapping[str, int] = field(default_factory=dict)  # attempts of each command
    wall_s: float = 0.0
    problems: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """As expected in every respect."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """A row of faults.json."""
        return {"good": self.good, **asdict(self)}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Row:
        """The row that `as_json` wrote."""
        return Row(**{key: value for key, value in row.items() if key != "good"})


@dataclass(frozen=True)
class Left:
    """What a run left behind."""

    journal: Sequence[Mapping[str, Any]]
    metrics: Sequence[Mapping[str, Any]]
    done: Mapping[str, Any] | None  # the file DONE


def seen(summary: Summary, run: Left, calm: Left) -> dict[str, Any]:
    """The facts of a run for its row; `calm` is the run that nothing happened to."""
    journal, complete = run.journal, run.done is not None
    first = next((e for e in journal if e["event"] == "attempt_ended" and e["cause"]), None)
    incident = next((i for i in summary.incidents if i.phases is not None), None)
    phases = None if incident is None or incident.phases is None else incident.phases
    commands = Counter(e["command"] for e in journal if e["event"] == "attempt_started")
    return {
        "end": summary.outcome,
        "cause": _cause(journal),
        "action": _action(journal, first),
        "why": summary.why,
        "exit_code": next((e["exit_code"] for e in journal if e["event"] == "stopped"), None),
        "detect_s": phases and round(phases.detect_s, 2),
        "decide_s": phases and round(phases.decide_s, 2),
        "launch_s": phases and round(phases.launch_s, 2),
        "first_step_s": phases and round(phases.first_step_s, 2),
        "recover_s": phases and round(phases.total_s, 2),
        "attempts": len(summary.attempts),
        "lost_steps": summary.lost_steps,
        "losses_equal": _equal("loss", run, calm, complete=complete),
        "samples_equal": _equal("samples", run, calm, complete=complete),
        "weights_equal": run.done == calm.done if complete else None,
        "commands": dict(commands),
    }


def _cause(journal: Sequence[Mapping[str, Any]]) -> str | None:
    found = next((e for e in journal if e["event"] in ("incident", "stopped")), None)
    ended = next((e for e in journal if e["event"] == "attempt_ended" and e["cause"]), None)
    if found is not None and found["event"] == "incident":
        return str(found["cause"])
    return str(ended["cause"]) if ended else None


def _action(journal: Sequence[Mapping[str, Any]], first: Mapping[str, Any] | None) -> str | None:
    """The verdict on the first incident; a stop counts, however many tries came before it."""
    if any(e["event"] == "stopped" for e in journal):
        return "stop"
    if first is not None:
        return str(first["action"])
    starts = [e for e in journal if e["event"] == "supervisor_started"]
    if any(e["restart"] for e in starts):
        return "requeue"  # by Slurm itself
    return "new job" if len({e["job"] for e in starts}) > 1 else None


def _equal(key: str, run: Left, calm: Left, *, complete: bool) -> bool:
    """Every training step is as in the undisturbed run, repeated ones too."""
    wanted = {line["step"]: line[key] for line in calm.metrics}
    same = all(line[key] == wanted.get(line["step"]) for line in run.metrics)
    return same and (not complete or {line["step"] for line in run.metrics} == set(wanted))


def problems(
    expected: Expected, facts: Mapping[str, Any], *, same_layout: bool, every: int
) -> list[str]:
    """What is not as it has to be, a line each."""
    found = []
    for key in ("end", "cause", "action", "exit_code"):
        wanted = getattr(expected, key)
        if facts[key] != wanted:
            found.append(f"{key} is {facts[key]}, expected {wanted}")
    if facts["samples_equal"] is not True:
        found.append("samples differ from the undisturbed run, or are missing")
    if same_layout and facts["losses_equal"] is not True:
        found.append("losses differ from the undisturbed run, or are missing")
    if same_layout and facts["end"] == "done" and facts["weights_equal"] is not True:
        found.append("final weights differ from the undisturbed run")
    if facts["lost_steps"] > expected.loses * every:
        allowed = expected.loses * every
        found.append(f"{facts['lost_steps']} training steps lost, {allowed} allowed")
    done_twice = [
        c for c, count in facts["commands"].items() if c.startswith("extra") and count > 1
    ]
    found += [f"command {name} was run again" for name in done_twice]
    return found
