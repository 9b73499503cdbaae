"""From an event of the journal to the page that a person gets: what happened, what was done about
it, what to do. Pure; delivery is notify.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional


@dataclass(frozen=True)
class Page:
    """One message."""

    kind: str
    what: str
    done: str
    todo: str

    @property
    def urgent(self) -> bool:
        """Always sent: nothing goes on without a person."""
        return self.kind == "stopped"

    def subject(self, run: str) -> str:
        """One line."""
        return " ".join(f"muster: {run}: {self.kind}: {self.what}".split())[:200]

    def text(self, facts: Mapping[str, Any]) -> str:
        """The whole message.

        Args:
            facts: of the run: recipe, job, run_dir, step, host.
        """
        lines = [
            f"What happened: {self.what}",
            f"What was done: {self.done}",
            f"What to do:    {self.todo}",
            "",
            *(f"{name}: {value}" for name, value in facts.items()),
        ]
        return "\n".join(lines) + "\n"


def page_for(event: str, facts: Mapping[str, Any]) -> Optional[Page]:
    """The page about an event; None: nobody needs one."""
    make = _PAGES.get(event)
    return make(facts) if make is not None else None


def _stopped(facts: Mapping[str, Any]) -> Page:
    done = "the run was stopped, the job has ended; it does not come back by itself"
    return Page("stopped", str(facts["why"]), done, str(facts["fix"]))


def _incident(facts: Mapping[str, Any]) -> Optional[Page]:
    """Only storage: for the others what was done is known when the attempt has ended."""
    if facts["cause"] != "storage":
        return None
    return Page(
        "storage",
        str(facts["detail"]),
        "the same nodes are tried again; no node was blamed. After budget.storage_s the run stops",
        "free space, or repair the storage that holds RUN_DIR",
    )


def _set_aside(facts: Mapping[str, Any]) -> Page:
    return Page(
        "set_aside",
        f"checkpoint {facts['checkpoint']} is bad: {facts['problems'][0]}",
        "it was set aside; the run goes on, and the one before it is still there",
        "nothing for this run. If it happens again, look after the storage",
    )


def _rolled_back(facts: Mapping[str, Any]) -> Page:
    skipped = f", batches {facts['skip']} are left out" if facts["skip"] else ""
    return Page(
        "rollback",
        str(facts["why"]),
        f"training goes on from training step {facts['to_step']}{skipped}",
        "look at the loss; if it was no spike, tell loss_guard in recipe.yaml",
    )


def _requeued(facts: Mapping[str, Any]) -> Page:
    done = "Slurm was asked for a new allocation; the run goes on from its newest checkpoint"
    todo = "nothing, unless the job stays in the queue"
    return Page("requeue", str(facts["why"]), done, todo)


def _supervisor_started(facts: Mapping[str, Any]) -> Optional[Page]:
    if facts["reason"] != "takeover":
        return None
    return Page(
        "takeover",
        "the supervisor before this one ended without a word",
        f"the run goes on, with job {facts['job']} on {facts['host']}",
        "nothing for this run; the journal's next incident says which host was lost",
    )


def _attempt_ended(facts: Mapping[str, Any]) -> Optional[Page]:
    action, cause = facts["action"], facts["cause"]
    if cause is None or action not in ("swap", "retry"):
        return None
    done = "other nodes of the allocation go on" if action == "swap" else "the same nodes go on"
    todo = "nothing for this run"
    if facts["node"] and action == "swap":
        todo = f"{todo}; see what is wrong with {facts['node']}"
    return Page(str(action), str(facts["why"]), done, todo)


def _done(facts: Mapping[str, Any]) -> Page:
    what = f"done after training step {facts['step']}"
    return Page("done", what, "the job has ended", "nothing")


_PAGES: dict[str, Callable[[Mapping[str, Any]], Optional[Page]]] = {
    "stopped": _stopped,
    "incident": _incident,
    "set_aside": _set_aside,
    "rolled_back": _rolled_back,
    "requeued": _requeued,
    "supervisor_started": _supervisor_started,
    "attempt_ended": _attempt_ended,
    "done": _done,
}
