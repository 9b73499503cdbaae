"""From the evidence of an ended attempt to what happens next: one pure function.

No clock, no file, no process is touched here, so every row of the table can be tested. Logs are
never read: exit codes, node states, beats and files in RUN_DIR decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from muster.recipe import Budget

EXIT_DATA, EXIT_STORAGE, EXIT_FENCED, EXIT_CONFIG = 65, 74, 75, 78
EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 126, 127
PROGRAM_CAUSES = frozenset({"rank_failed", "left_early", "launch_failed"})
_SIGNALLED = 128  # a shell's exit code for a process that died of signal n is 128 + n
_TERMINATED = 128 + 15


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
    asked_to_leave: Optional[str] = None  # time_limit, node_unfit
    last_step: Optional[int] = None
    max_step: int = 0  # of earlier attempts
    same_place: int = 0  # failures so far, this one not counted
    no_progress: int = 0
    attempts: int = 1


@dataclass(frozen=True)
class Verdict:
    """What to do, why, and about which node."""

    action: str  # done, retry, swap, requeue, wait, stop
    cause: Optional[str]  # None when nothing is wrong
    why: str
    node: Optional[str] = None
    fix: str = ""
    exit_code: int = 1
    repeatable: bool = False  # a failure of the program, which will come again at the same place


def decide(evidence: Evidence, budget: Budget) -> Verdict:
    """The verdict on an attempt. First what is finished, then hardware, then software, then budget.

    Returns:
        done: the command is complete. retry: same nodes. swap: other nodes of the allocation.
        requeue: a new allocation. wait: storage trouble, the same nodes later. stop: a person.
    """
    e = evidence
    if e.done_file:
        return Verdict("done", None, "DONE is there")
    all_zero = len(e.exits) == e.num_ranks and not any(e.exits.values())
    may_be_done = e.done_by_exit and e.asked_to_leave is None
    if may_be_done and (all_zero or (not e.exits and e.launcher_rc == 0)):
        return Verdict("done", None, "all ranks exited 0")
    for judge in (_hardware, _user_error):
        verdict = judge(e)
        if verdict is not None:
            return _within_budget(e, budget, verdict)
    if e.asked_to_leave is not None:
        return Verdict("requeue", "asked_to_leave", f"ranks left for {e.asked_to_leave}")
    return _within_budget(e, budget, _software(e, all_zero=all_zero))


def culprit(exits: dict[int, int]) -> Optional[int]:
    """The rank that failed by itself, of those that ended with an error.

    The others follow: a peer loses its connection and exits, or Slurm ends it with SIGTERM. So a
    rank that died of another signal comes first, then one that exited with an error of its own.

    Args:
        exits: exit codes by rank, in the order in which they were seen.
    """

    def weight(rank: int) -> int:
        code = exits[rank]
        return 2 if code == _TERMINATED else 1 if code < _SIGNALLED else 0

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
    if code is not None:
        why = f"rank {e.first_failed} exited with {code}"
        return Verdict("retry", "rank_failed", why, repeatable=code < _SIGNALLED)
    if e.launcher_rc is not None:
        return Verdict("retry", "launch_failed", f"srun ended with {e.launcher_rc}")
    return Verdict("retry", "rank_failed", "ranks vanished")


def _within_budget(e: Evidence, budget: Budget, verdict: Verdict) -> Verdict:
    """The same verdict, or stop when trying on is spending GPU hours on nothing."""
    if verdict.action == "stop" or verdict.cause == "storage":
        return verdict  # storage has a patience of its own: the supervisor's clock
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
            "read the last lines of the rank's log; the failure repeats, so it is in the program",
        )
    if no_progress >= budget.no_progress:
        return Verdict(
            "stop",
            verdict.cause,
            f"{verdict.why}; {no_progress} failures in a row without getting past {place}",
            verdict.node,
            "see journal.jsonl for the causes; then sbatch with the same --run-dir",
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
