"""What the kernel said about memory, disks, network cards and itself since the boot.

The GPU's own texts are in gpu_log.py. A hardware fault counts until the next boot; what only warns,
for an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read import kernel_events
from healthcheck.read.disks import nvme
from healthcheck.read.kernel_events import Seen
from healthcheck.read.kernel_log import KernelLine, KernelLog, kernel_log
from healthcheck.registry import check


@check("kernel_memory")
def kernel_memory(facts: Facts) -> Iterator[Result]:
    """No uncorrected memory error and no machine check in the kernel's log."""
    return _judge(facts, "kernel_memory")


@check("kernel_nvme")
def kernel_nvme(facts: Facts) -> Iterator[Result]:
    """No local disk that fails in the kernel's log; a volume of the cloud only warns."""
    volumes = {disk.name for disk in facts.once(nvme) or [] if not disk.local}
    for result, seen in _found(facts, "kernel_nvme"):
        if seen is not None and seen.thing in volumes and result.status == "FAIL":
            yield Result("WARN", result.detail, "kernel_nvme.volume", time=result.time)
        else:
            yield result


@check("kernel_filesystem")
def kernel_filesystem(facts: Facts) -> Iterator[Result]:
    """No damaged file system on a disk of the node."""
    return _judge(facts, "kernel_filesystem")


@check("kernel_nic")
def kernel_nic(facts: Facts) -> Iterator[Result]:
    """No network card that died, is too hot or has a bad cable."""
    return _judge(facts, "kernel_nic")


@check("kernel_stuck")
def kernel_stuck(facts: Facts) -> Iterator[Result]:
    """No failure of the kernel itself, no processor or process that hangs."""
    return _judge(facts, "kernel_stuck")


@check("kernel_program", when=("suspect", "periodic"))
def kernel_program(facts: Facts) -> Iterator[Result]:
    """No process killed for want of memory, none that crashed in a library of the GPU."""
    return _judge(facts, "kernel_program")


@check("kernel_mount", when=("gate", "periodic", "return", "suspect"))
def kernel_mount(facts: Facts) -> Iterator[Result]:
    """Every server of a shared file system that went silent has come back."""
    log = facts.once(kernel_log)
    if log.lines is None:
        yield _unread(log)
        return
    silent = kernel_events.silent_servers(log.lines)
    for server, since in silent.items():
        waits = max(0.0, facts.env.now() - since)
        yield Result("WARN", f"has waited {waits:.0f} s for the file server {server}", time=since)
    if not silent:
        yield Result("PASS", "waits for no file server")


def _judge(facts: Facts, name: str) -> Iterator[Result]:
    return (result for result, _ in _found(facts, name))


def _found(facts: Facts, name: str) -> Iterator[tuple[Result, Optional[Seen]]]:
    log = facts.once(kernel_log)
    if log.lines is None:
        yield _unread(log), None
        return
    found = kernel_events.find(facts.once(_meaningful), name, facts.env.now())
    for seen in found:
        times = f", {seen.count} times" if seen.count > 1 else ""
        detail = f"{seen.event.says.format(thing=seen.thing)}{times}: {seen.text[:120]}"
        yield Result(seen.event.status, detail, seen.event.rule, time=seen.time), seen
    if not found:
        yield Result("PASS", "has a kernel log without such a fault"), None


def _meaningful(facts: Facts) -> list[KernelLine]:
    return kernel_events.meaningful(facts.once(kernel_log).lines or ())


def _unread(log: KernelLog) -> Result:
    """Only root may read it on many systems: then root's own run of this check has read it."""
    return Result("SKIP" if log.denied else "UNKNOWN", log.why)
