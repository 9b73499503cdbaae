"""Processes of a job on the local cluster, seen from outside and found by their environment.

From this machine every process of every node is visible. What a job started carries the cluster's
SLURM_CONF and the job's number; a rank has RANK in addition, its wrapper has not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.harness.training import Training

Environment = Mapping[str, str]


def of_job(run: Training) -> Iterator[tuple[int, Environment]]:
    """(process number, environment) of all living processes of the job, slurmstepd aside."""
    conf = str(run.cluster.folder.path / "etc/slurm.conf")
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            environment = _environment(process)
            ours = environment.get("SLURM_CONF") == conf
            if ours and environment.get("SLURM_JOB_ID") == run.job and _is_alive(process):
                yield int(process.name), environment


def ranks(run: Training, rank: int | None = None) -> list[int]:
    """Processes of one rank of the newest attempt, or of all its ranks."""
    attempt = str(run.events("attempt_started")[-1]["attempt"])
    return [
        pid
        for pid, environment in of_job(run)
        if environment.get("MUSTER_ATTEMPT") == attempt and "RANK" in environment
        if rank is None or environment["RANK"] == str(rank)
    ]


def supervisors(run: Training) -> list[int]:
    """`muster run`, but for the process of the batch script that minds it."""
    found = _musters(run)
    return [pid for pid in found if _parent(pid) in found]


def batch_scripts(run: Training) -> list[int]:
    """The process that Slurm takes for the batch script: it has become `muster run`."""
    found = _musters(run)
    return [pid for pid in found if _parent(pid) not in found]


def _musters(run: Training) -> list[int]:
    return [
        pid
        for pid, environment in of_job(run)
        if "MUSTER_ATTEMPT" not in environment and b"\0run\0" in _command(pid)
    ]


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def launchers(run: Training) -> list[int]:
    """The srun that started the ranks; it waits on the batch host."""
    return [
        pid
        for pid, environment in of_job(run)
        if "MUSTER_ATTEMPT" in environment and "SLURM_STEP_ID" not in environment
        if _command(pid).startswith(b"srun\0")
    ]


def send(find: Callable[[], list[int]], what: str, number: int) -> None:
    """Send a signal to processes.

    Raises:
        LookupError: there are none (yet, or any more).
    """
    hit = 0
    for pid in find():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        hit += 1
    if not hit:
        raise LookupError(f"no {what}")


def signal_rank(run: Training, rank: int, number: int) -> None:
    """Send a signal to one rank of the newest attempt: to its processes, not to its wrapper.

    Raises:
        LookupError: there is no such process (yet, or any more).
    """
    send(lambda: ranks(run, rank), f"rank {rank} of job {run.job}", number)


def kill_supervisor(run: Training) -> None:
    """SIGKILL the supervisor on its batch host, as an out-of-memory killer would.

    Raises:
        LookupError: there is none (yet, or any more).
    """
    send(lambda: supervisors(run), f"supervisor of job {run.job}", signal.SIGKILL)


def kill_batch_script(run: Training) -> None:
    """SIGKILL the process of the batch script; Slurm ends the job.

    Raises:
        LookupError: there is none (yet, or any more).
    """
    send(lambda: batch_scripts(run), f"batch script of job {run.job}", signal.SIGKILL)


def _environment(process: Path) -> Environment:
    try:
        block = (process / "environ").read_bytes()
    except OSError:
        return {}  # gone, or not ours
    lines = block.decode(errors="replace").split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_alive(process: Path) -> bool:
    try:
        state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")
