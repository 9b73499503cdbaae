"""How a supervisor goes: for good, for a new allocation or job, or because Slurm says so."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from muster import slurm
from muster.errors import MusterError, UnavailableError
from resume import successor
from resume.journal import IN_VAIN
from resume.verdict import Verdict

if TYPE_CHECKING:
    from resume.supervisor import Supervisor

_DOWN_WAIT_S = 60.0
_MAX_REQUEUE_PAUSE_S = 300.0


class Ended(Exception):  # noqa: N818  (an end, not an error)
    """The supervisor has to go; carries the exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True)
class Ending:
    """The ends of one supervisor."""

    supervisor: Supervisor

    def stop(self, verdict: Verdict) -> NoReturn:
        """A person is needed: say why and what to do, and end without a requeue."""
        s = self.supervisor
        fix = verdict.fix or f"see {s.run_dir}/journal.jsonl"
        s.note("stopped", why=verdict.why, fix=fix, exit_code=verdict.exit_code)
        s.say(f"stopped: {verdict.why}. Fix: {fix}")
        s.fleet.leave()
        raise Ended(verdict.exit_code)

    def requeue(self, verdict: Verdict) -> NoReturn:
        """Give the allocation back for a new one; Slurm ends this process."""
        s = self.supervisor
        if not s.job.requeue and not s.site.submit_successor:
            fix = "sbatch --requeue, with the same --run-dir"
            self.stop(Verdict("stop", verdict.cause, f"{verdict.why}; not requeueable", None, fix))
        if s.state.no_progress >= s.recipe.budget.no_progress:
            fix = "repair the nodes, then sbatch with the same --run-dir"
            self.stop(Verdict("stop", verdict.cause, f"{verdict.why}; budget spent", None, fix))
        if not s.job.requeue:
            self._submit_successor(verdict)
        if verdict.cause in IN_VAIN and s.state.in_vain > 0:
            # The same nodes may come again: each time in vain later.
            pause_s = min(_MAX_REQUEUE_PAUSE_S, 10.0 * 2.0 ** (s.state.in_vain - 1))
            s.say(f"the allocation before was no better; giving this one back in {pause_s:.0f} s")
            s.wait_for(lambda: s.must_leave() is not None, pause_s)
        s.say("asking Slurm for a new allocation (requeue)")
        # Slurm 22.05 forgets the GPUs of a job that is requeued before its lost node is DOWN.
        s.wait_for(s.allocation.slurm_knows_the_lost, _DOWN_WAIT_S)
        while True:
            # First the act, then the word: were we killed in between, the guards would believe it.
            try:
                slurm.requeue(s.job.address)
            except UnavailableError as error:
                s.say(str(error))
            else:
                s.note("requeued", why=verdict.why, cause=verdict.cause)
                s.fleet.leave()
            s.wait_for(lambda: False, s.site.requeue_wait_s)

    def _submit_successor(self, verdict: Verdict) -> NoReturn:
        """A job that may not be requeued goes on as another one, where the site wants that."""
        s = self.supervisor
        try:
            number = successor.submit(s.job, s.run_dir, timeout_s=60.0)
        except UnavailableError as error:
            what = f"{verdict.why}; no successor: {error.what}"
            self.stop(Verdict("stop", verdict.cause, what, None, error.fix))
        s.note("successor_submitted", job=number, why=verdict.why, cause=verdict.cause)
        s.say(f"job {number} goes on with this run")
        s.fleet.leave()
        raise Ended(0)

    def end_now(self) -> NoReturn:
        """Slurm ends the job (cancelled, preempted, requeued): say so and go, within a second.

        Called from the signal handler, wherever the main thread is: Slurm may kill us soon, and
        guards that hear nothing would bring a cancelled job back. A SIGTERM of anybody else (the
        node shuts down, a stray kill) is a loss like any other: then the guards shall hear nothing.
        """
        s = self.supervisor
        try:
            job = slurm.show_job(s.job.job_id, timeout_s=2.0)
        except UnavailableError:
            os._exit(143)  # the guards ask until somebody answers, and know what a cancel is
        if job.state == "RUNNING":
            os._exit(143)
        if job.lost_its_script and job.restarts == s.job.restarts:
            self._come_back(job)
        with contextlib.suppress(OSError):
            if s.state.last_event != "requeued":
                s.journal.append("supervisor_left", why=f"ended by Slurm: {ended_for(job)}")
        s.fleet.order(do="bye", over=True)
        os._exit(143)

    def _come_back(self, job: slurm.Job) -> None:
        """Slurm ends the job, but no person does: for its time limit, or to make room."""
        s = self.supervisor
        with contextlib.suppress(MusterError, OSError):
            if s.job.requeue:
                slurm.requeue(job.address)
                s.journal.append("requeued", why=ended_for(job), cause="asked_to_leave")
                s.state.last_event = "requeued"
            elif s.site.submit_successor:
                number = successor.submit(job, s.run_dir, timeout_s=10.0)
                facts = {"job": number, "why": ended_for(job), "cause": "asked_to_leave"}
                s.journal.append("successor_submitted", **facts)
                s.state.last_event = "requeued"


def ended_for(job: slurm.Job) -> str:
    """Why Slurm ends this job, in words."""
    return "preempted" if job.preempted else f"{job.state.lower()} {job.reason}".strip()
