"""One attempt after the other until a command is done: what it starts with, what follows from it.

Which nodes, which checkpoint, is there space for the next one; then what the verdict asks for.
"""

from __future__ import annotations

import errno
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from muster.errors import DataError, StorageError
from muster.recipe import Command
from resume import checkpoint, loss_guard, preflight
from resume.attempt import Attempt
from resume.caretaker import VISIBLE_S
from resume.custody import note_set_aside, note_verified
from resume.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from resume.supervisor import Supervisor

_MAX_BACKOFF_S = 30.0


@dataclass
class Flow:
    """The attempts of one supervisor."""

    supervisor: Supervisor
    waiting_since: Optional[float] = None  # for storage, or what the nodes share

    def keep_going(self, command: Command) -> None:
        """Attempts at one command until it is done; anything else ends the supervisor."""
        s = self.supervisor
        if command.done_by == "DONE" and s.done_file.exists():
            s.note("command_done", command=command.name)
            return
        s.note("command_started", command=command.name)
        while True:
            verdict = self._attempt(command)
            if verdict.action == "done":
                s.note("command_done", command=command.name)
                s.allocation.nothing_failed()
                return
            s.say(f"{verdict.action}: {verdict.why}")
            if verdict.action == "stop":
                s.ending.stop(verdict)
            if verdict.action == "rollback":
                self._roll_back(verdict)
            if verdict.action == "requeue" or s.must_leave():
                s.ending.requeue(verdict)
            if verdict.action == "wait":
                self._wait_it_out(verdict)
            else:
                self.waiting_since = None
            if verdict.action == "retry":
                self._back_off(2.0 ** (s.state.no_progress - 1))

    def _attempt(self, command: Command) -> Verdict:
        """One attempt: gate, choose, pick, launch, watch, judge."""
        s = self.supervisor
        wanted = s.recipe.nodes if command.every_node else 1
        allocation = s.allocation
        fit = allocation.gate(wanted)
        s.note("gate", fit=fit, unfit=dict(allocation.bad))
        if len(fit) < wanted and allocation.refused:
            why = f"no step starts in this allocation: {allocation.refused}"
            s.note_incident("launch_failed", None, why)
            return Verdict("requeue", "launch_failed", why)
        if len(fit) < wanted and allocation.shared_fault:
            why, fix = allocation.shared_fault, "look at what these nodes share; then sbatch again"
            s.note_incident("infrastructure", None, why)
            return Verdict("wait", "infrastructure", why, None, fix)
        if len(fit) < wanted:
            why = f"{len(fit)} fit nodes, {wanted} needed: {allocation.bad_text()}"
            node = next(iter(allocation.bad), None)
            s.note_incident("node_unfit", node, why)
            return Verdict("requeue", "node_unfit", why, node)
        nodes = choose(fit, s.state.last_nodes, wanted)
        try:
            picked = self._pick()
            no_space = self._no_space()
        except OSError as error:
            s.note_incident("storage", None, str(error))
            return Verdict("wait", "storage", f"checkpoints cannot be read: {error}")
        if no_space is not None:
            if self.waiting_since is None:  # told once, not at every look
                s.note_incident("storage", None, no_space)
            fix = "delete what is not needed there, then sbatch with the same --run-dir"
            return Verdict("wait", "storage", no_space, None, fix, StorageError.code)
        attempt = Attempt(s, command, nodes, picked)
        return attempt.run()

    def _pick(self) -> checkpoint.Picked:
        """The checkpoint to resume from; drafts of dead attempts go, bad ones are set aside."""
        s = self.supervisor
        folder = s.run_dir / "checkpoints"
        for name in s.state.rolling_back:
            if (folder / name).exists():
                checkpoint.set_aside(folder / name, "rolled_back")
        picked = self._pick_shared(folder)
        checkpoint.discard_drafts(folder, s.state.attempts + 1)
        fetched = s.custody.fetch_newer(picked.step)
        if fetched is None and picked.path is None:
            raise OSError(errno.EIO, "no checkpoint here, and the archive does not answer")
        if fetched:
            picked = self._pick_shared(folder)
        if picked.lost:
            what = "checkpoints exist, none verifies; starting from zero would hide the loss"
            fix = f"restore one, or move {folder} away to start from zero on purpose"
            s.ending.stop(Verdict("stop", "data", f"{folder}: {what}", None, fix, DataError.code))
        if picked.path is not None and picked.step not in s.state.verified:
            note_verified(s, picked.path.name)
        return picked

    def _pick_shared(self, folder: Path) -> checkpoint.Picked:
        s = self.supervisor
        picked = s.in_background(lambda: checkpoint.pick(folder, patience_s=VISIBLE_S))
        for name, problems in picked.set_aside:
            note_set_aside(s, name, problems)
        return picked

    def _no_space(self) -> Optional[str]:
        """Why the next checkpoint will not fit, once all that the rules give away is gone."""
        s = self.supervisor
        folder = s.run_dir / "checkpoints"
        if preflight.shortage(folder) is None:
            return None
        s.custody.settle(s.recipe.checkpoints.settle_s)
        why = preflight.shortage(folder)
        aside = preflight.aside_bytes(folder)
        if why is not None and aside:
            why += f"; {preflight.size(aside)} are in checkpoints that were set aside"
        return why

    def _roll_back(self, verdict: Verdict) -> None:
        """Behind the checkpoint where the loss went wrong; what is newer is set aside."""
        s = self.supervisor
        folder, rules = s.run_dir / "checkpoints", s.recipe.loss_guard
        published = dict(checkpoint.published(folder))
        way = None
        if verdict.loss is not None:
            way = loss_guard.plan(verdict.loss, published, rules, s.state.windows)
        if way is None:
            fix = "start a new run with other data or another learning rate"
            why = f"{verdict.why}; there is no checkpoint to go back to"
            s.ending.stop(Verdict("stop", verdict.cause, why, None, fix))
        # First the word, then the act, which is done before the next pick, by whoever picks then.
        s.note(
            "rolled_back",
            why=verdict.why,
            cause=verdict.cause,
            to_step=way.to_step,
            checkpoints=list(way.aside),
            skip=way.skip,
        )
        skipped = f", without batches {way.skip}" if way.skip else ""
        s.say(f"back to training step {way.to_step}{skipped}")

    def _wait_it_out(self, verdict: Verdict) -> None:
        """The same nodes again a little later; in the end a person."""
        s = self.supervisor
        if verdict.cause == "slurm_away":
            s.wait_for(lambda: not s.allocation.node_watch.away(), math.inf)
            return
        now = time.monotonic()
        since = self.waiting_since = self.waiting_since or now
        if now - since > s.recipe.budget.storage_s:
            s.ending.stop(verdict)
        self._back_off(max(4.0, (now - since) / 4))

    def _back_off(self, pause_s: float) -> None:
        """Wait, but not before the first retry."""
        s = self.supervisor
        if pause_s > 1.0:
            pause_s = min(pause_s, _MAX_BACKOFF_S)
            s.say(f"next try in {pause_s:.0f} s")
            s.wait_for(lambda: False, pause_s)


def choose(fit: list[str], previous: list[str], wanted: int) -> list[str]:
    """The nodes to train on: those of the attempt before, then others, in Slurm's order.

    Slurm puts the ranks of a step on its nodes in its own order, whatever --nodelist says; the
    first of these nodes has rank 0, and the address that all ranks are given.
    """
    kept = [name for name in previous[:wanted] if name in fit]
    others = [name for name in fit if name not in kept]
    return sorted((kept + others)[:wanted], key=fit.index)
