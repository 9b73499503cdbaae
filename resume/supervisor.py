"""Keeps one job going until its run is done: what it knows, and how it stays alive while it waits.

What it does is in flow.py, how it goes in ending.py. Runs in the batch script, on the batch host.
All that has to survive this process is in RUN_DIR; the guards on the other nodes bring the job back
if this process or its node dies.
"""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional, TypeVar

from muster import slurm
from muster.errors import ConfigError, MusterError, StorageError
from muster.recipe import Recipe
from muster.site import Site
from resume import changes, lease, ranks
from resume.allocation import Allocation
from resume.container import Container
from resume.custody import Custody
from resume.ending import Ended, Ending
from resume.fleet import Fleet
from resume.flow import Flow
from resume.journal import Journal, State
from resume.lease import Lease
from resume.nodewatch import NodeWatch
from resume.notify import Notifier
from resume.step import Step
from resume.verdict import Verdict

T = TypeVar("T")
_TICK_S = 0.1
_OWNER_CHECK_S = 2.0
_STORAGE_WAIT_S = 2.0
_DOUBTS = 4  # failures without progress after which suspects that pass the gate are used again
_LAST_PAGE_S = 15.0


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
    container: Optional[Container] = None  # the ranks run in it
    step: Optional[Step] = None  # a user's own srun line instead of a recipe's command
    from_step: Optional[int] = None  # training step of the checkpoint that a person has chosen
    state: State = field(default_factory=State)
    allocation: Allocation = field(init=False)
    custody: Custody = field(init=False)
    notifier: Notifier = field(init=False)
    ending: Ending = field(init=False)
    guarded: Optional[tuple[int, Path]] = None  # attempt and its beat folder, while ranks run
    time_is_up: bool = False  # set by SIGUSR1
    _lease: Lease = field(init=False)
    _owner_checked_at: float = 0.0
    _greeted_at: float = 0.0
    isolated: bool = False  # cut off from everything: others shall take over

    def __post_init__(self) -> None:
        self._lease = Lease(self.run_dir, self.token)
        node_watch = NodeWatch(self.job.job_id, list(self.job.nodes))
        self.allocation = Allocation(self.site, self.fleet, node_watch, self.run_dir, self)
        self.custody = Custody(self)
        self.ending = Ending(self)
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

    # -- all of it ---------------------------------------------------------------------------

    def run(self) -> int:
        """All commands, one after the other; returns the exit code of the job."""
        try:
            self.custody.prepare()
            self.allocation.node_watch.start()
            self.note("allocation", nodes=self.allocation.node_watch.names)
            changes.go_back(self)
            if self.done_file.exists():
                self.say(f"{self.run_dir} is already complete")
            self._check_budget()
            flow = Flow(self)
            for command in self.recipe.commands:
                if command.name not in self.state.commands_done:
                    flow.keep_going(command)
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
            self.ending.stop(Verdict("stop", None, why))

    def _end_on_error(self, error: MusterError) -> None:
        """A person is needed: the guards must not bring the job back."""
        what = f"{error.where}: {error.what}"
        self.note("stopped", why=what, fix=error.fix, exit_code=error.code)
        self.fleet.leave()


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
