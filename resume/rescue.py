"""What the guards do when the supervisor is gone: fence the ranks, then requeue the job once.

Several guards come here at the same moment. A file that only one can create decides who acts; the
others stay as its spares. A job that a person cancelled, or that ended on purpose, is left alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from muster import slurm
from muster.errors import UnavailableError
from resume import journal, lease, ranks
from resume.durable import write_json

if TYPE_CHECKING:
    from resume.guard import GuardArguments
    from resume.lease import LeaseWatch

_FIRST_RETRY_S, _RETRY_S = 0.3, 2.0  # first soon: Slurm may be about to kill us
_SHORTEST_STILL_S = 2.5  # the supervisor writes every second
_FIRST_GUARDS, _TURN_S, _LONGEST_TURN_S = 8, 1.0, 60.0
_PATIENCE_S = 900.0
_DOWN_WAIT_S = 60.0


def rescue(
    arguments: GuardArguments,
    node: str,
    watch: LeaseWatch,
    cause: str,
    hurry_s: Optional[float] = None,
) -> int:
    """Requeue the job unless it ended on purpose; 0 when there was nothing to do or it worked.

    Args:
        arguments: of the guard.
        node: where it runs.
        watch: the lease, looked at again before every act: a guard that was cut off and comes back
            must not requeue a job that went on without it.
        cause: supervisor_lost or batch_host_lost, for the journal.
        hurry_s: Slurm kills this guard soon: longest stillness of the lease that is waited for.
    """
    noticed, deadline = time.time(), time.monotonic() + _PATIENCE_S
    lease_s = min(arguments.lease_s, max(_SHORTEST_STILL_S, hurry_s or math.inf))
    time.sleep(_turn_s(arguments.place, hurry_s))
    attempt, changed_at = 0, watch.changed_at
    while time.monotonic() < deadline:
        still_s, pause_s = watch.still_s(), _FIRST_RETRY_S
        try:
            job = slurm.show_job(arguments.job)
            if not _needed(arguments, job):
                return 0
            if job.state == "RUNNING" and watch.changed_at != changed_at:
                return 0  # its supervisor lives; a job that is ending has none
            if job.state == "RUNNING" and still_s < lease_s:
                time.sleep(_FIRST_RETRY_S)  # nobody ends this job, so there is time to make sure
                continue
            ranks.kill(arguments.run_dir)
            if cause == "batch_host_lost" and not _slurm_knows(job, deadline):
                time.sleep(_FIRST_RETRY_S)
                continue
            attempt += 1  # counted from when Slurm answers, which all guards see together
            pause_s = min(_RETRY_S, _FIRST_RETRY_S * attempt)
            if not _first(arguments, attempt):
                pause_s = _RETRY_S  # another guard asks Slurm for it at this moment
            else:
                with contextlib.suppress(OSError):  # a full disk must not keep the job down
                    _record(arguments, node, job, {"cause": cause, "noticed": noticed})
                slurm.requeue(job.address)
        except (UnavailableError, OSError) as error:
            with contextlib.suppress(OSError):  # the reader died with the supervisor
                print(f"muster guard: {node}: {error}", file=sys.stderr, flush=True)
        time.sleep(pause_s)
    return 1


def _turn_s(place: int, hurry_s: Optional[float]) -> float:
    """A few guards ask Slurm at once, the others one after the other: it may have a thousand."""
    turn_s = (place // _FIRST_GUARDS) * _TURN_S
    return min(turn_s, hurry_s / 2 if hurry_s is not None else _LONGEST_TURN_S)


def _slurm_knows(job: slurm.Job, deadline: float) -> bool:
    """Whether Slurm itself has given the lost host up, or has had a minute to do so.

    A host that was back before Slurm missed it is never given up; its new boot tells.

    Slurm 22.05 gives a job that is requeued earlier a new allocation without its GPUs: every step
    then fails with "Invalid generic resource".
    """
    if time.monotonic() > deadline - _PATIENCE_S + _DOWN_WAIT_S or job.batch_host is None:
        return True
    node = slurm.show_nodes([job.batch_host]).get(job.batch_host)
    return node is None or node.lost or node.booted_after(job)


def _needed(arguments: GuardArguments, job: slurm.Job) -> bool:
    """Whether the job still is the one that lost its supervisor."""
    if not lease.owns(arguments.run_dir, arguments.token):
        return False
    entries = journal.read(arguments.run_dir / "journal.jsonl")
    if entries and entries[-1]["event"] in journal.ENDS:
        return False
    return job.restarts == arguments.restart and job.lost_its_script


def _first(arguments: GuardArguments, attempt: int) -> bool:
    folder = arguments.run_dir / "rescues"
    folder.mkdir(exist_ok=True)
    name = f"{arguments.job}.{arguments.restart}.{attempt}"
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _record(arguments: GuardArguments, node: str, job: slurm.Job, loss: dict[str, object]) -> None:
    """Leave word for the next supervisor, which writes it into the journal.

    From when the loss was noticed to the requeue it was Slurm that was waited for.
    """
    path = rescue_file(arguments.run_dir, arguments.job, arguments.restart)
    if not path.exists():
        facts = {"by": node, "time": time.time(), "batch_host": job.batch_host, **loss}
        write_json(path, facts)


def rescue_file(run_dir: Path, job: str, restart: int) -> Path:
    """Where the guard that requeued says so."""
    return run_dir / "rescues" / f"{job}.{restart}.json"


def answers(node: slurm.Node, timeout_s: float = 1.0) -> bool:
    """Whether something accepts a connection on the node's slurmd port."""
    try:
        socket.create_connection((node.address, node.port), timeout=timeout_s).close()
    except OSError:
        return False
    return True
