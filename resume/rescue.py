"""What the guards do when the supervisor is gone: fence the ranks, then requeue the job once.

Several guards come here at the same moment. A file that only one can create decides who acts; the
others stay as its spares. A job that a person cancelled, or that ended on purpose, is left alone.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from muster import slurm
from muster.errors import UnavailableError
from resume import journal, lease, ranks
from resume.durable import write_json

if TYPE_CHECKING:
    from resume.guard import GuardArguments
    from resume.lease import LeaseWatch

_RETRY_S = 2.0
_LEASE_MOVES_S = 1.0  # a living supervisor advances its lease every second
_PATIENCE_S = 900.0


def rescue(arguments: GuardArguments, node: str, watch: LeaseWatch) -> int:
    """Requeue the job unless it ended on purpose; 0 when there was nothing to do or it worked.

    The lease is looked at again before every act: a guard that was cut off and comes back must not
    requeue a job that went on without it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    attempt = 0
    while time.monotonic() < deadline:
        ranks.kill(arguments.run_dir)
        attempt += 1
        try:
            if not _needed(arguments) or watch.still_s() < _LEASE_MOVES_S:
                return 0
            if _first(arguments, attempt):
                _record(arguments, node)
                slurm.requeue(arguments.job)
        except UnavailableError as error:
            print(f"muster guard: {node}: {error}", flush=True)
        time.sleep(_RETRY_S)
    return 1


def _needed(arguments: GuardArguments) -> bool:
    """Whether the job still is the one that lost its supervisor."""
    if not lease.owns(arguments.run_dir, arguments.token):
        return False
    entries = journal.read(arguments.run_dir / "journal.jsonl")
    if entries and entries[-1]["event"] in journal.ENDS:
        return False
    job = slurm.show_job(arguments.job)
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


def _record(arguments: GuardArguments, node: str) -> None:
    """Leave word for the next supervisor, which writes it into the journal."""
    path = rescue_file(arguments.run_dir, arguments.job, arguments.restart)
    if path.exists():
        return
    batch_host = slurm.show_job(arguments.job).batch_host
    facts = {"by": node, "time": time.time(), "batch_host": batch_host}
    write_json(path, {**facts, "host_answers": _answers(batch_host)})


def rescue_file(run_dir: Path, job: str, restart: int) -> Path:
    """Where the guard that requeued says so."""
    return run_dir / "rescues" / f"{job}.{restart}.json"


def _answers(batch_host: object) -> bool:
    if not batch_host:
        return False
    node = slurm.show_nodes([str(batch_host)])[str(batch_host)]
    return not node.lost and answers(node)


def answers(node: slurm.Node, timeout_s: float = 1.0) -> bool:
    """Whether something accepts a connection on the node's slurmd port."""
    try:
        socket.create_connection((node.address, node.port), timeout=timeout_s).close()
    except OSError:
        return False
    return True
