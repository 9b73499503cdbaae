"""The steps of one node, one after the other, and the one line that says how it ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lifecycle.description.load import as_json
from lifecycle.description.model import Description
from lifecycle.description.nodes import Node
from lifecycle.runner import facts
from lifecycle.runner.execute import Outcome, Places, run_step
from lifecycle.runner.ledger import Ledger
from lifecycle.runner.order import choose, in_order
from lifecycle.runner.step import Step, read_steps
from muster.errors import MusterError, StorageError

_CODES = (64, 65, 69, 73, 74, 75, 78)
_LINES_IN_MESSAGE = 3


class StepError(MusterError):
    """A required step failed. Its code is that of the step, where it means something."""

    def __init__(self, where: str, what: str, fix: str, rc: int) -> None:
        super().__init__(where, what, fix)
        self.step_rc = rc

    @property
    def code(self) -> int:  # type: ignore[override]
        """The exit code of the command."""
        return self.step_rc if self.step_rc in _CODES else 1


@dataclass
class Tally:
    """What became of the steps so far."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # step: the need that is not there

    def names(self, state: str) -> list[str]:
        """Steps that ended in a state."""
        return [name for name, outcome in self.outcomes.items() if outcome.state == state]


@dataclass(frozen=True)
class Plan:
    """What to run on this node."""

    description: Description
    node: Node
    steps: list[Step]  # in order
    dry: bool = False


def plan(
    description: Description,
    node: Node,
    folder: Path,
    *,
    dry: bool = False,
    since: str | None = None,
    only: Sequence[str] = (),
) -> Plan:
    """The steps of a folder that this node has, in order.

    Raises:
        ConfigError: a step's head is wrong, or needs cannot be met.
        UsageError: `since` or `only` names no step of this node.
    """
    values = facts.values(description, node)
    applicable = [s for s in in_order(read_steps(folder)) if s.applies(node.role, values)]
    return Plan(description, node, choose(applicable, since, only), dry)


def write_facts(the_plan: Plan, places: Places) -> None:
    """Put down what steps know, as bash, and the description as a cluster.yaml in one piece.

    Raises:
        StorageError: the disk is full, or fails.
    """
    known = facts.as_bash(facts.variables(the_plan.description, the_plan.node))
    for name, text in (("facts.sh", known), ("description.json", as_json(the_plan.description))):
        path = places.state / name
        part = path.with_suffix(".tmp")
        try:
            part.write_text(text, encoding="utf-8")
            part.chmod(0o600)
            part.replace(path)
        except OSError as error:
            fix = "make room on that disk, run again"
            raise StorageError(str(path), f"cannot be written: {error.strerror}", fix) from None


def run_plan(the_plan: Plan, places: Places, ledger: Ledger, say: Callable[[str], None]) -> Tally:
    """Run all steps of a plan; stops at a required one that fails.

    Args:
        the_plan: steps in order.
        places: where state, logs and secrets are.
        ledger: where the outcomes are written down; not touched in a dry run.
        say: told a line about each step.

    Raises:
        StepError: a required step failed; with the step, its exit code and its last lines.
        StorageError: the ledger cannot be written.
    """
    tally = Tally()
    for step in the_plan.steps:
        missing = _missing(step, tally)
        if missing is not None:
            tally.skipped[step.name] = missing
            say(f"{step.name}: skipped, since '{missing}' failed")
            if not the_plan.dry:
                ledger.note(step.name, "skipped", needs=missing)
            if step.optional is None and not the_plan.dry:
                raise _error(the_plan, step, Outcome("failed", 1, (f"needs '{missing}'",)), places)
            continue
        outcome = _run(the_plan, step, places, ledger, tally)
        tally.outcomes[step.name] = outcome
        say(_line(step, outcome))
        if outcome.state == "failed" and step.optional is None and not the_plan.dry:
            raise _error(the_plan, step, outcome, places)
    return tally


def _run(the_plan: Plan, step: Step, places: Places, ledger: Ledger, tally: Tally) -> Outcome:
    outcome = run_step(
        step,
        places,
        dry=the_plan.dry,
        again=ledger.was_cut_off(step.name),
        on_apply=lambda: ledger.note(step.name, "applying", pid=os.getpid()),
    )
    if the_plan.dry:
        depends = set(step.needs) & {*tally.names("differs"), *tally.skipped}
        # What its check needs is not there yet: then it cannot know, and there is work to do.
        return Outcome("differs", 0, outcome.tail) if outcome.rc and depends else outcome
    ledger.note(
        step.name,
        outcome.state,
        rc=outcome.rc,
        tries=outcome.tries,
        seconds=outcome.seconds,
        **({"tail": list(outcome.tail)} if outcome.state == "failed" else {}),
    )
    return outcome


def _missing(step: Step, tally: Tally) -> str | None:
    """The first of its needs that failed or was skipped."""
    absent = {*tally.names("failed"), *tally.skipped}
    return next((need for need in step.needs if need in absent), None)


def _line(step: Step, outcome: Outcome) -> str:
    tries = f" after {outcome.tries} tries" if outcome.tries > 1 else ""
    if outcome.state == "differs":
        return f"{step.name}: would change: {'; '.join(outcome.tail) or step.summary}"
    if outcome.state == "failed":
        why = f" (optional: {step.optional})" if step.optional else ""
        return f"{step.name}: failed with exit code {outcome.rc}{tries}{why}: {_end(outcome)}"
    return f"{step.name}: {outcome.state}{tries}"


def _end(outcome: Outcome) -> str:
    return " | ".join(outcome.tail[-_LINES_IN_MESSAGE:]) or "it said nothing"


def _error(the_plan: Plan, step: Step, outcome: Outcome, places: Places) -> StepError:
    tries = f" after {outcome.tries} tries" if outcome.tries > 1 else ""
    where = f"{the_plan.node.name}: step '{step.name}'"
    what = f"failed with exit code {outcome.rc}{tries}: {_end(outcome)}"
    fix = f"see {places.logs}/{step.name}.log, then run it again; it goes on where it was"
    return StepError(where, what, fix, outcome.rc)


def last_line(the_plan: Plan, tally: Tally, seconds: float) -> str:
    """How it ended, when no required step failed."""
    node = the_plan.node
    if the_plan.dry:
        work = [*tally.names("differs"), *tally.names("failed")]
        return f"{node.name} ({node.role}): would change {' '.join(work) or 'nothing'}"
    changed, failed = len(tally.names("changed")), tally.names("failed")
    parts = [f"{changed} changed", f"{len(tally.names('unchanged'))} unchanged"]
    if failed or tally.skipped:
        parts.append(f"without the optional {' '.join([*failed, *tally.skipped])}")
    host = socket.gethostname().partition(".")[0]
    at = "" if host == node.name else f" on {host}"
    steps = f"{len(the_plan.steps)} steps"
    return f"{node.name} ({node.role}){at}: {steps}: {', '.join(parts)}, in {seconds:.0f} s"
