"""Around a job: nobody else's process or memory is left on the GPUs that it was given."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.each_gpu import NO_ANSWER, NO_GPUS, each_gpu, number, on
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.gpu import Gpu, smi, without_gpus
from healthcheck.read.gpu_use import of_job, uses
from healthcheck.registry import check

_AROUND_A_JOB = ("prolog", "epilog")
_MOST_MIB = 1024  # older drivers count what they keep for themselves


@check("gpu_processes", when=_AROUND_A_JOB)
def gpu_processes(facts: Facts) -> Iterator[Result]:
    """No process is left on the GPUs of this job; other jobs' processes are not looked at."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    found = facts.once(uses)
    if found is None or not facts.once(smi).gpus:
        yield NO_ANSWER
        return
    left = [use for use in found if not use.foreign]
    for use in left:
        gpu = next((g for g in facts.once(smi).gpus if g.uuid == use.gpu), None)
        what = f"has process {use.pid} left on GPU {gpu.index if gpu else use.gpu}"
        yield Result("FAIL", what, gpu=gpu.name if gpu else use.gpu)
    if not left:
        yield Result("PASS", "has no process left on the GPUs of this job")


@check("gpu_memory_left", when=_AROUND_A_JOB)
def gpu_memory_left(facts: Facts) -> Iterator[Result]:
    """No memory is taken on the GPUs of this job when no process is left there."""
    mine, busy = of_job(facts), {use.gpu for use in facts.once(uses) or ()}

    def look(gpu: Gpu, used: str) -> Iterator[Result]:
        mib = number(used, "used memory")
        if (mine is None or gpu.uuid in mine) and gpu.uuid not in busy and mib > _MOST_MIB:
            yield on(gpu, "FAIL", f"has {mib} MiB taken without a process")

    if facts.once(uses) is None and not without_gpus(facts):
        yield NO_ANSWER
        return
    yield from each_gpu(facts, ("memory.used",), look, "has no memory taken without a process")
