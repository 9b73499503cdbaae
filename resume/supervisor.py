"""Keeps one job going until its run is done: the flow of the architecture, top to bottom.

Runs in the batch script, on the batch host. All that has to survive this process is in RUN_DIR; the
guards on the other nodes bring the job back if this process or its node dies.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, NoReturn, Optional, TypeVar

from muster import slurm
from muster.errors import ConfigError, DataError, MusterError, StorageError, UnavailableError
from muster.recipe import Command, Recipe
from muster.site import Site
from resume import checkpoint, lease, loss_guard, preflight, ranks, successor
from resume.allocation import Allocation
from resume.attempt import Attempt
from resume.caretaker import VISIBLE_S
from resume.custody import Custody, note_set_aside, note_verified
from resume.fleet import Fleet
from resume.journal import Journal, State
from resume.lease import Lease
from resume.nodewatch import NodeWatch
from resume.notify import Notifier
from resume.step import Step
from resume.verdict import Verdict

T = TypeVar("T")
_TICK_S = 0.1
_OWNER_CHECK_S = 2.0
_MAX_BACKOFF_S = 30.0
_STORAGE_WAIT_S = 2.0
_DOWN_WAIT_S = 60.0
_MAX_REQUEUE_PAUSE_S = 300.0
_DOUBTS = 4  # failures without progress after which suspects that pass the gate are used again
_LAST_PAGE_S = 15.0


class Ended(Exception):  # noqa: N818  (an end, not an error)
    """The supervisor has to go; carries the exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


@dataclass
class Supervisor:
    """One supervisor of one run."""

    site: Site
    recipe: Recipe
    job: slurm.Job
    recipe_dir: Path
    run_dir: Path
    token: int
    journal: Journal
    fleet: Fleet
    ranks_per_node: int
    cpus_per_rank: Optional[int]
    host: str  # the node that we run on, as Slurm calls it
    step: Optional[Step] = None  # a user's own srun line instead of a recipe's command
    state: State = field(default_factory=State)
    allocation: Allocation = field(init=False)
    custody: Custody = field(init=False)
    notifier: Notifier = field(init=False)
    guarded: Optional[tuple[int, Path]] = None  # attempt and its beat folder, while ranks run
    time_is_up: bool = False  # set by SIGUSR1
    _lease: Lease = field(init=False)
    _owner_checked_at: float = 0.0
    _greeted_at: float = 0.0
    _waiting_since: Optional[float] = None
    isolated: bool = False  # cut off from everything: others shall take over

    def __post_init__(self) -> None:
        self._lease = Lease(self.run_dir, self.token)
        node_watch = NodeWatch(self.job.job_id, list(self.job.nodes))
        self.allocation = Allocation(self.site, self.fleet, node_watch, self.run_dir, self)
        self.custody = Custody(self)
        self.notifier = Notifier(self.site.notify, self.run_dir, self._run_facts)

    @property
    def done_file(self) -> Path:
        """Training is complete when this exists."""
        return self.run_dir / "DONE"

    def say(self, text: str) -> None:
        """One line for the person who reads the job's output."""
        verb, out = ("run", sys.stdout) if self.step is None else ("srun", sys.stderr)
        print(f"muster {verb}: {time.strftime('%H:%M:%S')} {text}", file=out, flush=True)

    def note(self, event: str, **facts: object) -> None:
        """Write an event and take it into the state; a full disk is waited for, not died of.

        Raises:
            Ended: storage is away for longer than the budget for it.
        """
        since: Optional[float] = None
        while True:
            try:
                self.journal.append(event, **facts)
                break
            except OSError as error:
                since = since or time.monotonic()
                self._wait_to_write(error, since)
        self.state.note({"event": event, **facts})
        self.notifier.take(event, facts)

    def _run_facts(self) -> dict[str, object]:
        """What every page says about the run."""
        return {
            "run": f"{self.recipe.name} {self.job.job_id}",
            "run_dir": str(self.run_dir),
            "job": self.job.job_id,
            "host": self.host,
            "step": self.state.max_step,
        }

    def _wait_to_write(self, error: OSError, since: float) -> None:
        """Storage may come back; when it does not, end: nothing can be remembered without it."""
        waited_s = time.monotonic() - since
        if waited_s < _TICK_S:
            self.say(f"the journal cannot be written, waiting for storage: {error}")
        if waited_s > self.recipe.budget.storage_s:
            self.say(
                f"stopped: {self.journal.path} cannot be written for {waited_s:.0f} s: {error}. "
                "Fix: free space or repair the file system, then sbatch with the same --run-dir"
            )
            self.fleet.leave()
            raise Ended(StorageError.code)
        self.wait_for(lambda: False, _STORAGE_WAIT_S)

    def suspects(self) -> dict[str, tuple[str, str]]:
        """{node: (boot id, why)} of nodes that were put out and have not booted since.

        After some failures without progress there may be no others left, and one that passes the
        gate is better than none.
        """
        return self.state.suspects if self.state.no_progress < _DOUBTS else {}

    def must_leave(self) -> Optional[str]:
        """Why Slurm will end this job soon; None: nothing is known of it."""
        if self.time_is_up:
            return "time_limit"
        return "preempted" if self.allocation.node_watch.preempted() else None

    def note_incident(self, cause: str, node: Optional[str], why: str) -> None:
        """Something that went wrong before any rank was started."""
        facts = {"last_step": None, "last_step_time": None, "detected_at": time.time()}
        self.note("incident", attempt=None, cause=cause, node=node, detail=why, **facts)

    # -- staying alive while waiting ---------------------------------------------------------

    def tick(self) -> None:
        """To be called at least every second, whatever else happens.

        Raises:
            Ended: another supervisor owns the run.
        """
        now = time.monotonic()
        if now - self._owner_checked_at > _OWNER_CHECK_S:
            self._owner_checked_at = now
            if not lease.owns(self.run_dir, self.token):
                ranks.kill(self.run_dir)  # only those of this node; older than the new owner
                self.say("another supervisor owns this run; leaving")
                self.fleet.leave()
                raise Ended(75)
        if not self.isolated:
            self._lease.renew()
        self._hear_terminated()
        if self.guarded is not None and not self.fleet.running():
            self.allocation.revive_guards(*self.guarded)
        if now - self._greeted_at > 1.0:
            self._greeted_at = now
            self.fleet.order(do="alive")
        self.custody.tick()
        self.notifier.tick()

    def _hear_terminated(self) -> None:
        """Guards got SIGTERM: Slurm may have chosen this job as a victim, and knows why."""
        for view in self.fleet.nodes.values():
            if view.terminated:
                view.terminated = False
                self.allocation.node_watch.ask_now.set()

    def sit_out(self) -> None:
        """This node alone is cut off: let the others take over, and come back if none did."""
        self.say("neither the other nodes nor Slurm answer: this node is cut off, waiting")
        self.isolated = True
        ranks.kill(self.run_dir)
        self.wait_for(self.allocation.node_watch.refresh, math.inf)
        self.isolated = False
        self.say("Slurm answers again")

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Tick until the condition holds; False when it does not in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.tick()
            time.sleep(_TICK_S)
        return True

    def in_background(self, work: Callable[[], T]) -> T:
        """The result of work that may take minutes, while this thread keeps ticking."""
        with ThreadPoolExecutor(1) as pool:
            future: Future[T] = pool.submit(work)
            while not future.done():
                self.tick()
                time.sleep(_TICK_S / 2)
            return future.result()

    # -- the flow ----------------------------------------------------------------------------

    def run(self) -> int:
        """All commands, one after the other; returns the exit code of the job."""
        try:
            self.custody.prepare()
            self.allocation.node_watch.start()
            self.note("allocation", nodes=self.allocation.node_watch.names)
            if self.done_file.exists():
                self.say(f"{self.run_dir} is already complete")
            self._check_budget()
            for command in self.recipe.commands:
                if command.name not in self.state.commands_done:
                    self._keep_going(command)
            if self.custody.place is not None:  # what was published last must get there too
                self.custody.settle(self.recipe.checkpoints.settle_s)
            self.note("done", step=self.state.max_step)  # always last: nobody has to take over
            self.say(f"done: {self.run_dir}")
            self.fleet.leave()
        except Ended as end:
            return end.code
        except MusterError as error:
            self._end_on_error(error)
            raise
        finally:
            self.notifier.close(_LAST_PAGE_S)
            self.allocation.node_watch.stop()
        return 0

    def _check_budget(self) -> None:
        """Supervisors that die before any attempt must not be brought back for ever."""
        if self.state.no_progress >= self.recipe.budget.no_progress and not self.done_file.exists():
            why = f"{self.state.no_progress} failures in a row without a new training step"
            self.stop(Verdict("stop", None, why))

    def _end_on_error(self, error: MusterError) -> None:
        """A person is needed: the guards must not bring the job back."""
        what = f"{error.where}: {error.what}"
        self.note("stopped", why=what, fix=error.fix, exit_code=error.code)
        self.fleet.leave()

    def _keep_going(self, command: Command) -> None:
        """Attempts at one command until it is done; anything else ends the supervisor."""
        if command.done_by == "DONE" and self.done_file.exists():
            self.note("command_done", command=command.name)
            return
        self.note("command_started", command=command.name)
        while True:
            verdict = self._attempt(command)
            if verdict.action == "done":
                self.note("command_done", command=command.name)
                return
            self.say(f"{verdict.action}: {verdict.why}")
            if verdict.action == "stop":
                self.stop(verdict)
            if verdict.action == "rollback":
                self._roll_back(verdict)
            if verdict.action == "requeue" or self.must_leave():
                self._requeue(verdict)
            if verdict.action == "wait":
                self._wait_it_out(verdict)
            else:
                self._waiting_since = None
            if verdict.action == "retry":
                self._back_off(2.0 ** (self.state.no_progress - 1))

    def _attempt(self, command: Command) -> Verdict:
        """One attempt: gate, choose, pick, launch, watch, judge."""
        wanted = self.recipe.nodes if command.every_node else 1
        allocation = self.allocation
        fit = allocation.gate(wanted)
        self.note("gate", fit=fit, unfit=dict(allocation.bad))
        if len(fit) < wanted and allocation.shared_fault:
            why, fix = allocation.shared_fault, "look at what these nodes share; then sbatch again"
            self.note_incident("infrastructure", None, why)
            return Verdict("wait", "infrastructure", why, None, fix)
        if len(fit) < wanted:
            why = f"{len(fit)} fit nodes, {wanted} needed: {allocation.bad_text()}"
            node = next(iter(allocation.bad), None)
            self.note_incident("node_unfit", node, why)
            return Verdict("requeue", "node_unfit", why, node)
        nodes = choose(fit, self.state.last_nodes, wanted)
        try:
            picked = self._pick()
            no_space = self._no_space()
        except OSError as error:
            self.note_incident("storage", None, str(error))
            return Verdict("wait", "storage", f"checkpoints cannot be read: {error}")
        if no_space is not None:
            if self._waiting_since is None:  # told once, not at every look
                self.note_incident("storage", None, no_space)
            fix = "delete what is not needed there, then sbatch with the same --run-dir"
            return Verdict("wait", "storage", no_space, None, fix, StorageError.code)
        attempt = Attempt(self, command, nodes, picked)
        return attempt.run()

    def _pick(self) -> checkpoint.Picked:
        """The checkpoint to resume from; drafts of dead attempts go, bad ones are set aside."""
        folder = self.run_dir / "checkpoints"
        for name in self.state.rolling_back:
            if (folder / name).exists():
                checkpoint.set_aside(folder / name, "rolled_back")
        picked = self._pick_shared(folder)
        checkpoint.discard_drafts(folder, self.state.attempts + 1)
        fetched = self.custody.fetch_newer(picked.step)
        if fetched is None and picked.path is None:
            raise OSError(errno.EIO, "no checkpoint here, and the archive does not answer")
        if fetched:
            picked = self._pick_shared(folder)
        if picked.lost:
            what = "checkpoints exist, none verifies; starting from zero would hide the loss"
            fix = f"restore one, or move {folder} away to start from zero on purpose"
            self.stop(Verdict("stop", "data", f"{folder}: {what}", None, fix, DataError.code))
        if picked.path is not None and picked.step not in self.state.verified:
            note_verified(self, picked.path.name)
        return picked

    def _pick_shared(self, folder: Path) -> checkpoint.Picked:
        picked = self.in_background(lambda: checkpoint.pick(folder, patience_s=VISIBLE_S))
        for name, problems in picked.set_aside:
            note_set_aside(self, name, problems)
        return picked

    def _no_space(self) -> Optional[str]:
        """Why the next checkpoint will not fit, once all that the rules give away is gone."""
        folder = self.run_dir / "checkpoints"
        if preflight.shortage(folder) is None:
            return None
        self.custody.settle(self.recipe.checkpoints.settle_s)
        why = preflight.shortage(folder)
        aside = preflight.aside_bytes(folder)
        if why is not None and aside:
            why += f"; {preflight.size(aside)} are in checkpoints that were set aside"
        return why

    def _roll_back(self, verdict: Verdict) -> None:
        """Behind the checkpoint where the loss went wrong; what is newer is set aside."""
        folder, rules = self.run_dir / "checkpoints", self.recipe.loss_guard
        published = dict(checkpoint.published(folder))
        way = None
        if verdict.loss is not None:
            way = loss_guard.plan(verdict.loss, published, rules, self.state.windows)
        if way is None:
            fix = "start a new run with other data or another learning rate"
            why = f"{verdict.why}; there is no checkpoint to go back to"
            self.stop(Verdict("stop", verdict.cause, why, None, fix))
        # First the word, then the act, which is done before the next pick, by whoever picks then.
        self.note(
            "rolled_back",
            why=verdict.why,
            cause=verdict.cause,
            to_step=way.to_step,
            checkpoints=list(way.aside),
            skip=way.skip,
        )
        skipped = f", without batches {way.skip}" if way.skip else ""
        self.say(f"back to training step {way.to_step}{skipped}")

    def _wait_it_out(self, verdict: Verdict) -> None:
        """The same nodes again a little later; in the end a person."""
        if verdict.cause == "slurm_away":
            self.wait_for(lambda: not self.allocation.node_watch.away(), math.inf)
            return
        now = time.monotonic()
        since = self._waiting_since = self._waiting_since or now
        if now - since > self.recipe.budget.storage_s:
            self.stop(verdict)
        self._back_off(max(4.0, (now - since) / 4))

    def _back_off(self, pause_s: float) -> None:
        """Wait, but not before the first retry."""
        if pause_s > 1.0:
            pause_s = min(pause_s, _MAX_BACKOFF_S)
            self.say(f"next try in {pause_s:.0f} s")
            self.wait_for(lambda: False, pause_s)

    # -- ends --------------------------------------------------------------------------------

    def stop(self, verdict: Verdict) -> NoReturn:
        """A person is needed: say why and what to do, and end without a requeue."""
        fix = verdict.fix or f"see {self.run_dir}/journal.jsonl"
        self.note("stopped", why=verdict.why, fix=fix, exit_code=verdict.exit_code)
        self.say(f"stopped: {verdict.why}. Fix: {fix}")
        self.fleet.leave()
        raise Ended(verdict.exit_code)

    def _requeue(self, verdict: Verdict) -> NoReturn:
        """Give the allocation back for a new one; Slurm ends this process."""
        if not self.job.requeue:
            self._submit_successor(verdict)
        if self.state.no_progress >= self.recipe.budget.no_progress:
            fix = "repair the nodes, then sbatch with the same --run-dir"
            self.stop(Verdict("stop", verdict.cause, f"{verdict.why}; budget spent", None, fix))
        if verdict.cause == "node_unfit" and self.state.in_vain > 0:
            # The same nodes may come again: each time in vain later.
            pause_s = min(_MAX_REQUEUE_PAUSE_S, 10.0 * 2.0 ** (self.state.in_vain - 1))
            self.say(
                f"the allocation before was no better; giving this one back in {pause_s:.0f} s"
            )
            self.wait_for(lambda: self.must_leave() is not None, pause_s)
        self.say("asking Slurm for a new allocation (requeue)")
        # Slurm 22.05 forgets the GPUs of a job that is requeued before its lost node is DOWN.
        self.wait_for(self.allocation.slurm_knows_the_lost, _DOWN_WAIT_S)
        while True:
            # First the act, then the word: were we killed in between, the guards would believe it.
            try:
                slurm.requeue(self.job.address)
            except UnavailableError as error:
                self.say(str(error))
            else:
                self.note("requeued", why=verdict.why, cause=verdict.cause)
                self.fleet.leave()
            self.wait_for(lambda: False, self.site.requeue_wait_s)

    def _submit_successor(self, verdict: Verdict) -> NoReturn:
        """A job that may not be requeued goes on as another one, where the site wants that."""
        if not self.site.submit_successor:
            fix = "sbatch --requeue, with the same --run-dir"
            self.stop(Verdict("stop", verdict.cause, f"{verdict.why}; not requeueable", None, fix))
        if self.state.no_progress >= self.recipe.budget.no_progress:
            fix = "repair the nodes, then sbatch with the same --run-dir"
            self.stop(Verdict("stop", verdict.cause, f"{verdict.why}; budget spent", None, fix))
        try:
            number = successor.submit(self.job, self.run_dir, timeout_s=60.0)
        except UnavailableError as error:
            what = f"{verdict.why}; no successor: {error.what}"
            self.stop(Verdict("stop", verdict.cause, what, None, error.fix))
        self.note("successor_submitted", job=number, why=verdict.why, cause=verdict.cause)
        self.say(f"job {number} goes on with this run")
        self.fleet.leave()
        raise Ended(0)

    def end_now(self) -> NoReturn:
        """Slurm ends the job (cancelled, preempted, requeued): say so and go, within a second.

        Called from the signal handler, wherever the main thread is: Slurm may kill us soon, and
        guards that hear nothing would bring a cancelled job back. A SIGTERM of anybody else (the
        node shuts down, a stray kill) is a loss like any other: then the guards shall hear nothing.
        """
        try:
            job = slurm.show_job(self.job.job_id, timeout_s=2.0)
        except UnavailableError:
            os._exit(143)  # the guards ask until somebody answers, and know what a cancel is
        if job.state == "RUNNING":
            os._exit(143)
        if job.lost_its_script and job.restarts == self.job.restarts:
            self._come_back(job)
        with contextlib.suppress(OSError):
            if self.state.last_event != "requeued":
                self.journal.append("supervisor_left", why=f"ended by Slurm: {ended_for(job)}")
        self.fleet.order(do="bye", over=True)
        os._exit(143)

    def _come_back(self, job: slurm.Job) -> None:
        """Slurm ends the job, but no person does: for its time limit, or to make room."""
        with contextlib.suppress(MusterError, OSError):
            if self.job.requeue:
                slurm.requeue(job.address)
                self.journal.append("requeued", why=ended_for(job), cause="asked_to_leave")
                self.state.last_event = "requeued"
            elif self.site.submit_successor:
                number = successor.submit(job, self.run_dir, timeout_s=10.0)
                facts = {"job": number, "why": ended_for(job), "cause": "asked_to_leave"}
                self.journal.append("successor_submitted", **facts)
                self.state.last_event = "requeued"


def ended_for(job: slurm.Job) -> str:
    """Why Slurm ends this job, in words."""
    return "preempted" if job.preempted else f"{job.state.lower()} {job.reason}".strip()


def choose(fit: list[str], previous: list[str], wanted: int) -> list[str]:
    """The nodes to train on: those of the attempt before, then others, in Slurm's order.

    Slurm puts the ranks of a step on its nodes in its own order, whatever --nodelist says; the
    first of these nodes has rank 0, and the address that all ranks are given.
    """
    kept = [name for name in previous[:wanted] if name in fit]
    others = [name for name in fit if name not in kept]
    return sorted((kept + others)[:wanted], key=fit.index)


def wanted_nodes(recipe: Recipe, allocated: int) -> None:
    """Check that the allocation is large enough for the recipe.

    Raises:
        ConfigError: fewer nodes than the recipe trains on.
    """
    if allocated < recipe.nodes:
        raise ConfigError(
            "recipe.yaml: nodes",
            f"the job has {allocated} nodes, the recipe trains on {recipe.nodes}",
            f"sbatch --nodes={recipe.nodes + recipe.spares}, or pass nodes={allocated} spares=0",
        )


def ranks_on_a_node(recipe: Recipe, site: Site, gpus_on_node: Optional[int]) -> int:
    """Recipe, else site, else one per GPU that Slurm gave, else one."""
    return recipe.ranks_per_node or site.ranks_per_node or gpus_on_node or 1
