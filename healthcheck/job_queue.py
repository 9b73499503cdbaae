"""What `muster watch` asks Slurm about jobs, and the two things that it does to one."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from muster import slurm
from muster.errors import UnavailableError
from muster.process import run
from muster.slurm import Job, Node

_COLUMNS = "%A|%T|%B|%S|%r"
_OURS = re.compile(r"^[^#\n]*(\bmuster(\.pyz)?[\"']?\s+s?run\b|--auto-resume=1\b)", re.MULTILINE)
_FIX = "see 'scontrol ping' and the controller's log"
_PROBE_S = 2.0


@dataclass(frozen=True)
class Entry:
    """One line of squeue: enough to see whether a job is worth a closer look."""

    job_id: str
    state: str
    batch_host: str
    start_time: str
    reason: str


def entries() -> list[Entry]:
    """All jobs that wait or run.

    Raises:
        UnavailableError: Slurm does not answer.
    """
    argv = ["squeue", "--noheader", "--states=PENDING,RUNNING", f"--format={_COLUMNS}"]
    done = run(argv, timeout_s=slurm.TIMEOUT_S)
    if not done.ok:
        raise UnavailableError("squeue", done.reason, _FIX)
    lines = [line.split("|", 4) for line in done.out.split("\n")]
    return [Entry(*words) for words in lines if len(words) == 5]


def is_musters(job_id: str) -> bool:
    """Whether the job's script starts `muster run`, or srun with our option.

    The script is all that there is to tell: a launch that failed has run nothing of ours.

    Raises:
        UnavailableError: Slurm does not hand out the script; an interactive job has none.
    """
    argv = ["scontrol", "write", "batch_script", job_id, "-"]
    done = run(argv, timeout_s=slurm.TIMEOUT_S)
    if not done.ok:
        raise UnavailableError(f"scontrol write batch_script {job_id}", done.reason, _FIX)
    return starts_muster(done.out)


def starts_muster(script: str) -> bool:
    """Whether a batch script starts muster, outside comments."""
    return bool(_OURS.search(script))


def release(job: Job, excluded: Sequence[str]) -> None:
    """Let a held job start again, on none of these nodes.

    Raises:
        UnavailableError: Slurm refused or does not answer.
    """
    if excluded:
        _scontrol("update", f"jobid={job.address}", f"excnodelist={','.join(excluded)}")
    _scontrol("release", job.address)


def _scontrol(*words: str) -> None:
    done = run(["scontrol", *words], timeout_s=slurm.TIMEOUT_S)
    if not done.ok:
        raise UnavailableError(" ".join(["scontrol", *words]), done.reason, _FIX)


def reachable(node: Node) -> bool:
    """Whether the machine answers at all; "nobody listens there" is an answer too."""
    try:
        socket.create_connection((node.address, node.port), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
