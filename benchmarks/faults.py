"""The faults of the measurement, each with the moment at which it happened."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bench import Job

# Prints "TIME" and signals every training process of the job on this node.
_SIGNAL = """\
for p in /proc/[0-9]*; do
  grep -qzx "SLURM_JOB_ID=$1" $p/environ 2>/dev/null || continue
  line=$(tr '\\0' ' ' <$p/cmdline)
  case $line in *python*train.py*) ;; *) continue ;; esac
  case $line in *'sh -c'* | *torch.distributed.run*) continue ;; esac
  [ "$2" = 0 ] || { date +%s.%N && kill -"$2" "${p#/proc/}"; }
  echo "found ${p#/proc/}"
done
"""


def _on(job: Job, node: str, signal: int) -> list[str]:
    """What the script said on a node."""
    argv = ["bash", "-c", _SIGNAL, "_", job.number, str(signal)]
    return job.bench.cluster.exec(argv, node=node).out.split("\n")


def batch_host(job: Job) -> str:
    """The node of the batch script."""
    listed = ["squeue", "--noheader", "--job", job.number, "--format=%B"]
    return job.bench.cluster.exec(listed).out.strip()


def worker(job: Job) -> str:
    """A node that trains and is not the batch host.

    Raises:
        LookupError: there is none.
    """
    host = batch_host(job)
    for node in job.bench.cluster.shape.names:
        if node != host and any(line.startswith("found") for line in _on(job, node, 0)):
            return node
    raise LookupError(f"job {job.number} trains on no node but {host}")


def _signal(job: Job, number: int) -> float:
    said = _on(job, worker(job), number)
    if len(said) < 2:
        raise LookupError(f"job {job.number}: no training process")
    return float(said[0])


def _lose(job: Job, node: str, *, silent: bool) -> float:
    """The node's folder changes when its process 1 is gone."""
    job.bench.cluster.node("kill", node, silent=silent)
    return (job.bench.cluster.folder.path / "nodes" / node).stat().st_mtime


FAULTS: dict[str, Callable[[Job], float]] = {
    "rank killed": lambda job: _signal(job, 9),
    "worker lost": lambda job: _lose(job, worker(job), silent=False),
    "worker lost, silent": lambda job: _lose(job, worker(job), silent=True),
    "batch host lost": lambda job: _lose(job, batch_host(job), silent=True),
    "rank hangs": lambda job: _signal(job, 19),
}


def recovery_s(job: Job, fault: str) -> tuple[float, float | None]:
    """Break a running job; (moment of the fault, seconds to its next training step or None)."""
    before = int(job.metrics[-1]["attempt"])
    at = FAULTS[fault](job)
    back = job.next_attempt_at(before)
    if back is not None and back < at:
        raise ValueError(f"{fault}: a training step of a new attempt before the fault")
    return at, None if back is None else back - at
