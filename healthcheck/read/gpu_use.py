"""Who uses the GPUs: processes and memory, of the GPUs that a job was given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional

from healthcheck import lazy
from healthcheck.facts import Facts
from healthcheck.read.gpu import ask, smi

COMMAND = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,nounits"]
_HEADER = "gpu_uuid, pid"  # so that nobody can be told from no answer
_LIMIT_S = 5.0
_ROW = lazy.pattern(r"\s*(GPU-[0-9a-fA-F-]{8,40})\s*,\s*(\d{1,10})\s*")
_JOB = lazy.pattern(r"/job_(\d{1,12})(?:/|$)", re.MULTILINE)
_TRIES = {"epilog": 3}
_WAIT_S = 3.0


@dataclass(frozen=True)
class Use:
    """A process on a GPU; `foreign`: it is another job's, or on a GPU that is not this job's."""

    gpu: str
    pid: str
    foreign: bool = False


def parse_use(text: str) -> Optional[list[Use]]:
    """Rows of a GPU's UUID and a process id below a header; None: something else, or cut."""
    head, *lines = text.split("\n")
    found = [_ROW.fullmatch(line) for line in lines[:-1]]
    if head.strip() != _HEADER or not lines or lines[-1] or not all(found):
        return None
    return [Use(row[1], row[2]) for row in found if row]


def parse_job(cgroup: Optional[str]) -> Optional[str]:
    """The Slurm job of a process, by its /proc/PID/cgroup; None: it is in none."""
    found = _JOB.search(cgroup or "")
    return found[1] if found else None


def uses(facts: Facts) -> Optional[tuple[Use, ...]]:
    """Processes on the GPUs; None: no answer.

    After a job its processes need a moment to go, so an epilog asks three times.
    """
    found: Optional[tuple[Use, ...]] = None
    for attempt in range(_TRIES.get(facts.when, 1)):
        if attempt:
            facts.env.sleep(_WAIT_S)
        done = ask(facts, COMMAND, _LIMIT_S)
        if done.timed_out:
            break
        rows = parse_use(done.out) if done.ok else None
        if rows is None:
            continue
        found = tuple(_alive(facts, rows))
        if all(use.foreign for use in found):
            break
    return found


def _alive(facts: Facts, rows: Iterable[Use]) -> Iterator[Use]:
    mine, own = of_job(facts), facts.env.variable("SLURM_JOB_ID")
    for row in rows:
        if facts.env.read(f"/proc/{row.pid}/stat") is None:
            continue  # gone meanwhile
        job = parse_job(facts.env.read(f"/proc/{row.pid}/cgroup"))
        elsewhere = mine is not None and row.gpu not in mine
        yield Use(row.gpu, row.pid, foreign=elsewhere or (job is not None and job != own))


def of_job(facts: Facts) -> Optional[frozenset[str]]:
    """UUIDs of the GPUs that Slurm gave to the job of this prolog or epilog; None: all."""
    given = facts.env.variable("SLURM_JOB_GPUS")
    if given is None:
        return None
    numbers = set(re.findall(r"\d{1,3}", given))
    return frozenset(gpu.uuid for gpu in facts.once(smi).gpus if gpu.index in numbers)
