"""From the evidence of an ended attempt to what happens next: one pure function.

No clock, no file, no process is touched here, so every row of the table can be tested. Logs are
never read: exit codes, node states, beats and files in RUN_DIR decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Optional

from muster.recipe import Budget
from resume.loss_guard import Finding

EXIT_DATA, EXIT_STORAGE, EXIT_FENCED, EXIT_DIVERGED, EXIT_CONFIG = 65, 74, 75, 76, 78
EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 126, 127
PROGRAM_CAUSES = frozenset({"rank_failed", "left_early", "launch_failed"})
_SIGNALLED = 128  # a shell's exit code for a process that died of signal n is 128 + n
TERMINATED = 128 + 15
_KILLED = 128 + 9
_MEMORY_FIX = "a smaller batch or model per rank, or more memory for the job (--mem)"
_TIME_FIX = "raise --time, or save more often; then sbatch with the same --run-dir"
_CAUSES_FIX = "see journal.jsonl for the causes; then sbatch with the same --run-dir"
_PROGRAM_FIX = "read the last lines of the rank's log; the failure repeats, so it is in the program"

CAUSES = {
    # cause: (kind, ResumeAction of HyperPod for it)
    "node_lost": ("hardware", "RETRYSTEP"),
    "node_unfit": ("hardware", "RETRYSTEP"),
    "batch_host_lost": ("hardware", "RETRYSTEP"),
    "supervisor_lost": ("scheduler", "RETRYSTEP"),
    "infrastructure": ("fabric", "NONE"),
    "slurm_away": ("scheduler", "NONE"),
    "asked_to_leave": ("scheduler", "NONE"),
    "rank_failed": ("software", "NONE"),
    "left_early": ("software", "NONE"),
    "hang": ("software", "NONE"),
    "launch_failed": ("scheduler", "NONE"),
    "out_of_memory": ("out of memory", "NONE"),
    "storage": ("storage", "NONE"),
    "data": ("data", "NONE"),
    "config": ("user", "NONE"),
    "diverged": ("data", "NONE"),
    "loss_spike": ("data", "NONE"),
    "loss_mismatch": ("storage", "NONE"),
}
"""What kind of trouble a cause is, and what HyperPod's plugin would say: RETRYSTEP restarts, NONE
ends the job. Here a cause with NONE is tried again too, but only while the run makes progress."""

UNEXPLAINED = frozenset(
    {"rank_failed", "hang", "launch_failed", "left_early", "out_of_memory", "diverged"}
)
"""Causes that a sick node may hide behind."""


@dataclass(frozen=True)
class Evidence:
    """All that is known about an attempt when it has ended or must end."""

    num_ranks: int
    num_nodes: int  # nodes that the command needs
    num_usable: int  # nodes of the allocation that are neither lost nor unfit
    exits: dict[int, int] = field(default_factory=dict)  # rank -> exit code, where known
    first_failed: Optional[int] = None  # rank that failed by itself, see `culprit`
    launcher_rc: Optional[int] = None  # srun's own code; None while it runs
    done_file: bool = False
    done_by_exit: bool = False  # the command is complete when all ranks exit 0
    lost: tuple[str, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict)
    hung_rank: Optional[int] = None
    hung_node: Optional[str] = None
    hung_s: float = 0.0
    timed_out: bool = False  # the command's own time limit
    asked_to_leave: Optional[str] = None  # time_limit, preempted, node_unfit
    oom_nodes: tuple[str, ...] = ()  # where the kernel has killed for want of memory meanwhile
    blamed_node: Optional[str] = None  # where the rank to blame ran
    blamed_before: tuple[str, ...] = ()  # the same of earlier failures without progress since
    infrastructure: str = ""  # what several nodes show alike, in words
    slurm_away: bool = False  # the controller does not answer
    last_step: Optional[int] = None
    max_step: int = 0  # of earlier attempts
    same_place: int = 0  # failures so far, this one not counted
    no_progress: int = 0
    attempts: int = 1
    loss: Optional[Finding] = None  # of the loss guard, where it is on
    guards_loss: bool = False
    rollbacks: int = 0
    max_rollbacks: int = 0


@dataclass(frozen=True)
class Verdict:
    """What to do, why, and about which node."""

    action: str  # done, retry, swap, requeue, wait, rollback, stop
    cause: Optional[str]  # None when nothing is wrong
    why: str
    node: Optional[str] = None
    fix: str = ""
    exit_code: int = 1
    repeatable: bool = False  # a failure of the program, which will come again at the same place
    loss: Optional[Finding] = None  # what a rollback goes back behind


def decide(evidence: Evidence, budget: Budget) -> Verdict:
    """The verdict on an attempt. First what is finished, then hardware, then software, then budget.

    Returns:
        done: the command is complete. retry: same nodes. swap: other nodes of the allocation.
        requeue: a new allocation. wait: storage trouble, the same nodes later. rollback: an older
        checkpoint and other data. stop: a person.
    """
    e = evidence
    if e.done_file:
        return Verdict("done", None, "DONE is there")
    all_zero = len(e.exits) == e.num_ranks and not any(e.exits.values())
    may_be_done = e.done_by_exit and e.asked_to_leave is None
    if may_be_done and (all_zero or (not e.exits and e.launcher_rc == 0)):
        return Verdict("done", None, "all ranks exited 0")
    verdict = _hardware(e) or _user_error(e) or _loss(e)
    if verdict is None and e.asked_to_leave is not None:
        verdict = Verdict("requeue", "asked_to_leave", f"ranks left for {e.asked_to_leave}")
    verdict = verdict or _infrastructure(e) or _software(e, all_zero=all_zero)
    return _in_time(e, _within_budget(e, budget, _elsewhere(e, verdict)))


def _in_time(e: Evidence, verdict: Verdict) -> Verdict:
    """Where Slurm ends the job soon, there is no time for another attempt in it."""
    ends = e.asked_to_leave in ("time_limit", "preempted")
    if ends and verdict.action in ("retry", "swap", "wait"):
        return replace(verdict, action="requeue")
    return verdict


def unexplained(verdict: Verdict) -> bool:
    """Whether the health of the nodes has to be looked at before this verdict is believed."""
    return verdict.action in ("retry", "stop") and verdict.cause in UNEXPLAINED


def culprit(exits: dict[int, int]) -> Optional[int]:
    """The rank that failed by itself, of those that ended with an error.

    The others follow: a peer loses its connection and exits, or Slurm ends it with SIGTERM. So a
    rank that died of another signal comes first, then one that exited with an error of its own.

    Args:
        exits: exit codes by rank, in the order in which they were seen.
    """

    def weight(rank: int) -> int:
        code = exits[rank]
        return 2 if code == TERMINATED else 1 if code < _SIGNALLED else 0

    failed = [rank for rank, code in exits.items() if code != 0]
    return min(failed, key=weight) if failed else None


def _hardware(e: Evidence) -> Optional[Verdict]:
    """A node is lost or unfit: other nodes if there are enough, else a new allocation."""
    if not e.lost and not e.unfit:
        return None
    action = "swap" if e.num_usable >= e.num_nodes else "requeue"
    if e.lost:
        return Verdict(action, "node_lost", f"{', '.join(e.lost)} does not respond", e.lost[0])
    node, reason = next(iter(e.unfit.items()))
    return Verdict(action, "node_unfit", f"{node}: {reason}", node)


def _user_error(e: Evidence) -> Optional[Verdict]:
    """Exit codes that say that another try cannot help; the rank printed where and what."""
    code = e.exits.get(e.first_failed) if e.first_failed is not None else None
    if code == EXIT_CONFIG:
        return Verdict("stop", "config", "configuration error", None, "see the rank's log", 78)
    if code == EXIT_DATA:
        return Verdict("stop", "data", "data missing or damaged", None, "see the rank's log", 65)
    if code in (EXIT_NOT_FOUND, EXIT_CANNOT_RUN):
        return Verdict(
            "stop",
            "config",
            f"the command cannot be run (exit code {code})",
            None,
            "activate the environment that has python and torch, then sbatch again",
            78,
        )
    return None


def _infrastructure(e: Evidence) -> Optional[Verdict]:
    """What no node is to blame for: it passes, or a person has to look at it."""
    if e.infrastructure:
        fix = "look at what these nodes share: switch, power, storage; then sbatch again"
        return Verdict("wait", "infrastructure", e.infrastructure, None, fix)
    nothing_ran = not e.exits and e.launcher_rc is not None and e.last_step is None
    if e.slurm_away and nothing_ran:
        why = f"srun ended with {e.launcher_rc}, and the controller does not answer"
        return Verdict("wait", "slurm_away", why, None, "see 'scontrol ping', then sbatch again")
    return None


def _elsewhere(e: Evidence, verdict: Verdict) -> Verdict:
    """The second failure on one node without progress is tried on another one, if there is one."""
    again = verdict.action == "retry" and e.blamed_node in e.blamed_before
    if again and not verdict.repeatable and e.num_usable > e.num_nodes:
        why = f"{verdict.why}, on {e.blamed_node} again"
        return replace(verdict, action="swap", why=why, node=e.blamed_node)
    return verdict


def _loss(e: Evidence) -> Optional[Verdict]:
    """The loss is wrong: back behind a checkpoint where the recipe wants that, else as a crash."""
    code = e.exits.get(e.first_failed) if e.first_failed is not None else None
    finding = e.loss
    if finding is None and code == EXIT_DIVERGED and not e.done_by_exit:
        step = (e.last_step or 0) + 1
        why = f"rank {e.first_failed}: the loss of training step {step} is not finite"
        finding = Finding("diverged", why, step, step)
    if finding is None:
        return None
    if not e.guards_loss:
        return Verdict("retry", finding.cause, finding.why, repeatable=True)
    if e.rollbacks >= e.max_rollbacks:
        why = f"{finding.why}; {e.rollbacks} rollbacks are the whole budget"
        fix = "look at the data and the learning rate, then sbatch with the same --run-dir"
        return Verdict("stop", finding.cause, why, None, fix)
    return Verdict("rollback", finding.cause, finding.why, loss=finding)


def _software(e: Evidence, *, all_zero: bool) -> Verdict:  # noqa: PLR0911  (a table)
    if e.hung_rank is not None:
        why = f"rank {e.hung_rank} showed no life for {e.hung_s:.0f} s"
        return Verdict("retry", "hang", why, e.hung_node)
    if e.timed_out:
        return Verdict("retry", "hang", "the command ran past its time limit")
    code = e.exits.get(e.first_failed) if e.first_failed is not None else None
    if code == EXIT_STORAGE:
        why = f"rank {e.first_failed}: storage full or failing"
        return Verdict("wait", "storage", why, None, "free space, then sbatch again", 74)
    if all_zero:
        why = "all ranks exited 0 without DONE"
        return Verdict("retry", "left_early", why, repeatable=True)
    if code == _KILLED and e.blamed_node in e.oom_nodes:
        why = f"rank {e.first_failed} was killed for want of memory on {e.blamed_node}"
        return Verdict("retry", "out_of_memory", why, None, _MEMORY_FIX, repeatable=True)
    if code is not None:
        why = f"rank {e.first_failed} exited with {code}"
        return Verdict("retry", "rank_failed", why, repeatable=code < _SIGNALLED)
    if e.launcher_rc is not None:
        return Verdict("retry", "launch_failed", f"srun ended with {e.launcher_rc}")
    return Verdict("retry", "rank_failed", "ranks vanished")


def _within_budget(e: Evidence, budget: Budget, verdict: Verdict) -> Verdict:
    """The same verdict, or stop when trying on is spending GPU hours on nothing."""
    if verdict.action in ("stop", "wait"):
        return verdict  # waiting has a patience of its own: the supervisor's clock
    progressed = e.last_step is not None and e.last_step > e.max_step
    place = f"training step {max(e.last_step or 0, e.max_step)}"
    if verdict.cause in PROGRAM_CAUSES and not progressed and not budget.retry_blind:
        return _program_failed(e, verdict)
    same_place = (0 if progressed else e.same_place) + int(verdict.repeatable)
    no_progress = (0 if progressed else e.no_progress) + 1
    if same_place >= budget.same_place and verdict.repeatable and not progressed:
        return Verdict(
            "stop",
            verdict.cause,
            f"{verdict.why}, {same_place} times without getting past {place}",
            verdict.node,
            verdict.fix or _PROGRAM_FIX,
        )
    if no_progress >= budget.no_progress:
        return Verdict(
            "stop",
            verdict.cause,
            f"{verdict.why}; {no_progress} failures in a row without getting past {place}",
            verdict.node,
            _TIME_FIX if verdict.cause == "asked_to_leave" else _CAUSES_FIX,
            verdict.exit_code,
        )
    if e.attempts >= budget.attempts:
        return Verdict(
            "stop",
            verdict.cause,
            f"{verdict.why}; {e.attempts} attempts are the whole budget",
            verdict.node,
            "raise budget.attempts, then sbatch with the same --run-dir",
        )
    return verdict


def _program_failed(e: Evidence, verdict: Verdict) -> Verdict:
    """No node is to blame and no training step was won: the program's own end is the answer."""
    code = e.exits.get(e.first_failed) if e.first_failed is not None else None
    code = code or e.launcher_rc or 1
    fix = "read what it wrote; no node is to blame, so it is not tried again"
    exit_code = code if 0 < code < 256 else 1
    return Verdict("stop", verdict.cause, verdict.why, verdict.node, fix, exit_code)
