"""The host itself: memory, processors, memory errors, services, limits of a process."""

from __future__ import annotations

import math
from collections.abc import Iterator

from healthcheck import counters
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.efa import efa
from healthcheck.read.infiniband import fabric_ports
from healthcheck.read.limits import memlock_bytes
from healthcheck.read.memory import edac, memory_bytes, online_cpus, slurm_size
from healthcheck.read.services import services
from healthcheck.read.volumes import SHM, shared_memory
from healthcheck.registry import check

_GIB = 2**30
MEMORY_FRACTION = 0.95
"""The kernel keeps some of what is installed for itself; a lost module is far more than that."""
CORRECTED_PER_DAY = 10_000
SHM_FRACTION = 0.25
SHM_USED = 0.5
MEMLOCK_BYTES = 16 * _GIB
_DAY_S = 24 * 3600.0


@check("memory_size")
def memory_size(facts: Facts) -> Iterator[Result]:
    """As much memory as the profile says, else as Slurm believes."""
    seen, expected = facts.once(memory_bytes), facts.profile.memory_gib
    slurm = facts.once(slurm_size).memory_mib if facts.profile.slurm_sizes else None
    if seen is None:
        yield Result("UNKNOWN", "cannot read how much memory it has")
    elif expected is not None and seen < expected * _GIB * MEMORY_FRACTION:
        yield Result("FAIL", f"has {seen / _GIB:.0f} of {expected:g} GiB of memory")
    elif expected is None and slurm is not None and seen < slurm * 2**20:
        what = f"has {seen >> 20} MiB of memory where Slurm believes in {slurm}"
        yield Result("WARN", what, "memory_size.slurm")
    elif expected is None and slurm is None:
        yield Result("SKIP", f"has {seen / _GIB:.0f} GiB of memory, no number is expected")
    else:
        yield Result("PASS", f"has {seen / _GIB:.0f} GiB of memory")


@check("cpu_count")
def cpu_count(facts: Facts) -> Iterator[Result]:
    """As many processors run as the profile says, else as Slurm believes."""
    seen, expected = facts.once(online_cpus), facts.profile.cpus
    slurm = facts.once(slurm_size).cpus if facts.profile.slurm_sizes else None
    if seen is None:
        yield Result("UNKNOWN", "cannot read how many processors run")
    elif expected is not None and seen < expected:
        yield Result("FAIL", f"runs {seen} of {expected} processors")
    elif expected is None and slurm is not None and seen < slurm:
        what = f"runs {seen} processors where Slurm believes in {slurm}"
        yield Result("WARN", what, "cpu_count.slurm")
    elif expected is None and slurm is None:
        yield Result("SKIP", f"runs {seen} processors, no number is expected")
    else:
        yield Result("PASS", f"runs {seen} processors")


@check("memory_errors")
def memory_errors(facts: Facts) -> Iterator[Result]:
    """The memory controllers counted no error that they could not correct, and not too many."""
    seen = facts.once(edac)
    if not seen.uncorrected and not seen.unreadable:
        yield Result("SKIP", "has no counters of memory errors")
        return
    bad = {name: count for name, count in seen.uncorrected.items() if count}
    for name, count in bad.items():
        yield Result("FAIL", f"has {count} uncorrected memory errors on {name}")
    values = {f"edac.{name}.ce": count for name, count in seen.corrected.items()}
    for key, more in counters.growth(facts, values, _DAY_S).items():
        if more is not None and more > CORRECTED_PER_DAY:
            what = f"corrected {more} memory errors within a day on {key.split('.')[1]}"
            yield Result("WARN", what, "memory_errors.corrected")
    if seen.unreadable:
        yield Result("UNKNOWN", f"cannot read {', '.join(seen.unreadable)}")
    elif not bad:
        yield Result("PASS", f"has {len(seen.uncorrected)} memory controllers without errors")


@check("services", when=("gate", "periodic", "return", "suspect"))
def services_active(facts: Facts) -> Iterator[Result]:
    """Every service that the site lists is active."""
    if not facts.site.services:
        yield Result("SKIP", "was given no list of services")
        return
    found = facts.once(services)
    if found is None:
        yield Result("UNKNOWN", "got no answer from systemctl")
        return
    for name, state in found.items():
        if state in ("active", "reloading", "refreshing"):
            yield Result("PASS", f"has {name} running")
        elif state == "activating":
            yield Result("WARN", f"is just starting {name}")
        else:
            yield Result("FAIL", f"has {name} {state}")


@check("shm_size", when=("gate", "periodic", "return"))
def shm_size(facts: Facts) -> Iterator[Result]:
    """Room in /dev/shm, which NCCL and data loaders fill; what nobody removes is memory lost."""
    seen, memory = facts.once(shared_memory), facts.once(memory_bytes)
    if seen.size_bytes is None or seen.free_bytes is None or not seen.size_bytes or memory is None:
        yield Result("UNKNOWN", f"cannot say how large {SHM} is")
        return
    used = 1 - seen.free_bytes / seen.size_bytes
    if seen.size_bytes < memory * SHM_FRACTION:
        what = f"has {SHM} of {seen.size_bytes / _GIB:.1f} GiB, {memory / _GIB:.0f} GiB of memory"
        yield Result("WARN", what)
    elif used > SHM_USED:
        yield Result("WARN", f"has {SHM} {used:.0%} full", "shm_size.used")
    else:
        yield Result("PASS", f"has {seen.size_bytes / _GIB:.1f} GiB of {SHM}, {used:.0%} used")


@check("memlock", when=("gate",))
def memlock(facts: Facts) -> Iterator[Result]:
    """Where there is a fabric, a process of the job may lock the memory that it needs."""
    fabric, devices = facts.once(fabric_ports), facts.once(efa)
    if not fabric and not (devices and devices.on_bus):
        yield Result("SKIP", "has no fabric that wants memory locked")
        return
    limit = facts.once(memlock_bytes)
    if limit is None:
        yield Result("UNKNOWN", "cannot read how much memory a process may lock")
    elif limit < MEMLOCK_BYTES:
        yield Result("WARN", f"lets a process lock only {limit / _GIB:.1f} GiB of memory")
    else:
        much = "all" if math.isinf(limit) else f"{limit / _GIB:.0f} GiB"
        yield Result("PASS", f"lets a process lock {much} of its memory")
