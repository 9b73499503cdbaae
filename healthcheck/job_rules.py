"""What the watch does with a job that nobody else can help: a pure function, like `watch_rules`.

Two things leave a run alone with nobody of ours alive. Slurm holds a job whose launch failed, such
as by a prolog on a bad node; and with --no-kill a job runs on after its batch host is gone, should
no guard be left to bring it back. Both are put right once in each restart of a job, and
`job_cures_per_day` times in a day: what helps no longer by then is for a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Optional

from healthcheck import reason as reasons
from healthcheck.suspect import SHARED_BY, shared_cause
from muster import slurm
from muster.slurm import Job, Node

Cure = Literal["release", "requeue"]

# Slurm's words for it; the second after too many of the first. A person who holds or requeues into
# hold leaves others.
HELD_BY_SLURM = frozenset({"launch failed requeued held", "JobHoldMaxRequeue"})
LAUNCH_REASONS = frozenset({"Prolog error", "batch job complete failure"})
_DAY_S = 86400.0
_DRAIN_SLACK_S = 60.0  # between the drain of a node and the requeue of its job


@dataclass(frozen=True)
class JobRecord:
    """What the watch knows about one job; kept in the state file."""

    restart: int
    since: Optional[float] = None  # since when it is in trouble; None: it is not
    cured: tuple[Cure, ...] = ()  # in this restart
    cured_at: tuple[float, ...] = ()  # Unix times, in all restarts, of the last day


@dataclass(frozen=True)
class JobAction:
    """What to do, why, and the record that must be on disk before it is done (None: forget)."""

    kind: Literal["none", "wait", "release", "requeue"]
    why: str
    record: Optional[JobRecord] = None
    excluded: tuple[str, ...] = ()  # for release: all nodes that the job shall not get


@dataclass(frozen=True)
class View:
    """What decides besides the job."""

    nodes: Mapping[str, Node]
    host_answers: bool  # the batch host, at the other end of a connection
    slurm_users: frozenset[str]
    stranded_after_s: float
    cures_per_day: int
    shared_cause_s: float
    now: float


def next_job_action(job: Job, record: Optional[JobRecord], view: View) -> JobAction:
    """The next action for a job of muster's."""
    if record is None or record.restart != job.restarts:
        record = JobRecord(job.restarts, cured_at=record.cured_at if record else ())
    today = tuple(at for at in record.cured_at if view.now - at < _DAY_S)
    record = replace(record, cured_at=today)
    cure, why = trouble(job, view)
    if cure is None:
        calm = replace(record, since=None)
        return JobAction("none", why, calm if record.cured_at else None)
    record = replace(record, since=view.now if record.since is None else record.since)
    held_back = _held_back(job, record, cure, view)
    if held_back is not None:
        return JobAction("wait", f"{why}; {held_back}", record)
    after = replace(record, cured=(*record.cured, cure), cured_at=(*today, view.now))
    if cure == "requeue":
        return JobAction("requeue", why, after)
    bad = [name for name in failed_nodes(job, view) if name not in job.required_nodes]
    why += f"; excluded: {','.join(bad)}" if bad else "; no node to blame is known"
    new = sorted({*bad} - {*job.excluded_nodes})
    return JobAction("release", why, after, (*job.excluded_nodes, *new) if new else ())


def trouble(job: Job, view: View) -> tuple[Optional[Cure], str]:
    """What would help the job, and why; None: it needs no help."""
    if job.state == "PENDING" and job.reason.replace("_", " ") in HELD_BY_SLURM:
        return "release", "Slurm holds it because its launch failed"
    host = view.nodes.get(job.batch_host or "")
    if job.state != "RUNNING" or host is None:
        return None, "it needs no help"
    if host.booted_after(job):
        return "requeue", f"its batch host {host.name} has booted since it began"
    if host.lost and not view.host_answers:
        return "requeue", f"its batch host {host.name} is lost"
    return None, "it needs no help"


def failed_nodes(job: Job, view: View) -> list[str]:
    """Nodes that may have failed the launch: drained about when the job went back."""
    back_at = slurm.unix_time(job.submit_time)
    if back_at is None:
        return []
    return [name for name, at in _launch_failures(view) if abs(at - back_at) <= _DRAIN_SLACK_S]


def _launch_failures(view: View) -> list[tuple[str, float]]:
    """(node, Unix time) of nodes that Slurm drained for a launch, or muster for what it found."""
    found = []
    for name, node in sorted(view.nodes.items()):
        slurms = node.reason in LAUNCH_REASONS and node.reason_user in view.slurm_users
        at = slurm.unix_time(node.reason_time)
        if "DRAIN" in node.states and at is not None and (slurms or reasons.read(node.reason)):
            found.append((name, at))
    return found


def _held_back(job: Job, record: JobRecord, cure: Cure, view: View) -> Optional[str]:
    """Why nothing is done now; None: it may be done."""
    if cure in record.cured:
        return "that was tried in this restart already"
    if len(record.cured_at) >= view.cures_per_day:
        fix = f"scontrol {cure} {job.address}"
        return (
            f"it was helped {len(record.cured_at)} times in a day; look at its nodes, then '{fix}'"
        )
    if cure == "release":
        return _alike("fail to launch", _launch_failures(view), view)
    if not job.requeue:
        return "it may not be requeued: scancel it, then sbatch with the same --run-dir"
    since = view.now if record.since is None else record.since
    if view.now - since <= view.stranded_after_s:
        return f"its guards have {view.stranded_after_s:.0f} s to bring it back"
    lost = [
        (name, at)
        for name, node in view.nodes.items()
        if node.lost and (at := slurm.unix_time(node.reason_time)) is not None
    ]
    return _alike("were lost", lost, view)


def _alike(what: str, seen: Iterable[tuple[str, float]], view: View) -> Optional[str]:
    """Why jobs are left alone for a while: many nodes have the same trouble, and just now."""
    recent = [(name, at) for name, at in seen if view.now - at <= view.shared_cause_s]
    if not shared_cause(recent, view.shared_cause_s):
        return None
    names = ", ".join(sorted(name for name, _ in recent)[:SHARED_BY])
    return f"{len(recent)} nodes {what} at the same time ({names}): is it the infrastructure?"
