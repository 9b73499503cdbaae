"""The job that follows one which Slurm will not requeue: same script, same RUN_DIR, once.

What was given to sbatch on its command line is in the job's record or in its script; what the first
job's script had in its environment is in ours. The successor learns RUN_DIR from one variable, so
the script need not pass anything on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from muster import slurm
from muster.errors import UnavailableError
from muster.process import run
from resume.durable import read_json, write_json

CONTINUE = "MUSTER_CONTINUE"
"""Names the job before and its RUN_DIR, as JOB:PATH, for `muster run` in the successor."""

_KEPT = ("SLURM_CONF", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")


def submit(job: slurm.Job, run_dir: Path, timeout_s: float) -> str:
    """Submit the successor of a job, unless that was done already; returns its number.

    Raises:
        UnavailableError: its script is gone, sbatch refuses or does not answer.
    """
    note = run_dir / "successors" / f"{job.job_id}.{job.restarts}.json"
    told = read_json(note)
    if isinstance(told, dict) and "job" in told:
        return str(told["job"])
    script = slurm.script_of(job)
    if script is None:
        fix = "sbatch it by hand, with the same --run-dir"
        raise UnavailableError(f"job {job.job_id}", f"its script is gone ({job.command})", fix)
    argv = ["sbatch", "--parsable", *options(job), str(script)]
    argv += arguments(job.command, script, sys.argv[1:])
    done = run(argv, timeout_s=timeout_s, env=environment(os.environ, job.job_id, run_dir))
    if not done.ok:
        fix = "sbatch it by hand, with the same --run-dir"
        raise UnavailableError("sbatch", done.reason, fix)
    number = done.out.strip().split(";")[0]
    with contextlib.suppress(OSError):
        note.parent.mkdir(exist_ok=True)
        write_json(note, {"job": number})
    return number


def options(job: slurm.Job) -> list[str]:
    """What the job's record says about it, as options that stand over those of the script."""
    return [
        f"--dependency=afterany:{job.job_id}",
        *(f"--{name}={value}" for name, value in job.submitted if value),
    ]


def arguments(command: str, script: Path, own: Sequence[str]) -> list[str]:
    """The script's own arguments. Slurm joins them by blanks; ours tell where one held a blank.

    Args:
        command: Slurm's `Command=`.
        script: the file that it begins with.
        own: the words after `muster` of this process.
    """
    text = command[len(str(script)) :].strip()
    for start in range(len(own) + 1):
        if " ".join(own[start:]) == text:
            return list(own[start:])
    return text.split()


def environment(values: Mapping[str, str], job: str, run_dir: Path) -> dict[str, str]:
    """Our environment without what belongs to this job alone."""
    kept = {k: v for k, v in values.items() if k in _KEPT or not k.startswith("SLURM")}
    return {**kept, CONTINUE: f"{job}:{run_dir}"}


def predecessor(values: Mapping[str, str]) -> Optional[tuple[str, Path]]:
    """(job, RUN_DIR) that this job goes on with; None: it is nobody's successor."""
    job, colon, path = values.get(CONTINUE, "").partition(":")
    return (job, Path(path)) if colon and path else None
