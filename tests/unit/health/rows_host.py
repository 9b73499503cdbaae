"""The host, row by row: clock, memory, processors, services, limits."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.harness.fake_tools import efa
from tests.harness.fake_tools.host import EDAC, NODE, TRACKING
from tests.harness.fake_tools.node import BOOT_ID, FakeNode
from tests.harness.fake_tools.rows import Edit, Row
from tests.harness.fake_tools.storage import GIB, volume


def file(path: str, content: object) -> Edit:
    """A file has another content; None: it cannot be read."""
    return lambda node: node.files.__setitem__(path, content)


def profile(**keys: object) -> Edit:
    """Other expectations."""

    def edit(node: FakeNode) -> None:
        node.profile = replace(node.profile, **keys)  # type: ignore[arg-type]

    return edit


def both(*edits: Edit) -> Edit:
    """One after the other."""

    def edit(node: FakeNode) -> None:
        for one in edits:
            one(node)

    return edit


def tracking(old: str, new: str) -> Edit:
    """chronyc says something else."""
    assert old in TRACKING
    return lambda node: node.say("chronyc", TRACKING.replace(old, new))


def no_chrony(timedatectl: str = "", kernel: bool | None = None) -> Edit:
    """chronyc is not installed."""

    def edit(node: FakeNode) -> None:
        del node.tools["chronyc"]
        node.synchronised = kernel
        if timedatectl:
            node.say("timedatectl", timedatectl)

    return edit


def slurm(old: str, new: str) -> Edit:
    """Slurm believes something else, and the profile says nothing."""
    assert old in NODE

    def edit(node: FakeNode) -> None:
        node.profile = replace(node.profile, cpus=None, memory_gib=None)
        node.say("scontrol", NODE.replace(old, new))

    return edit


def nobody(node: FakeNode) -> None:
    """Neither the profile nor Slurm says what to expect."""
    node.profile = replace(node.profile, cpus=None, memory_gib=None)
    node.say("scontrol", rc=1)


def seen_before(node: FakeNode, **points: int) -> None:
    """Counters as an earlier run saw them, an hour ago."""
    then = node.now - 3600
    history = {
        "boot_id": BOOT_ID,
        "points": {key.replace("__", "."): [[then, value]] for key, value in points.items()},
        "since": {},
    }
    node.memory["counters.json"] = json.dumps(history)


def corrected(now: int, before: int) -> Edit:
    """The first memory controller counts corrected errors."""

    def edit(node: FakeNode) -> None:
        node.files[f"{EDAC}/mc0/ce_count"] = str(now)
        seen_before(node, edac__mc0__ce=before)

    return edit


def units(*states: str) -> Edit:
    """systemctl says so of the three services."""
    active = set(states) == {"active"}
    return lambda node: node.say("systemctl", "\n".join(states), rc=0 if active else 3)


def no_services(node: FakeNode) -> None:
    """The site lists none."""
    node.site = replace(node.site, services=[])


def shm(size_gib: int, free_gib: int) -> Edit:
    """Another size of /dev/shm."""
    return lambda node: node.volumes.update({"/dev/shm": volume(size_gib * GIB, free_gib * GIB)})


def no_fabric(node: FakeNode) -> None:
    """Neither EFA nor InfiniBand."""
    node.remove("/sys/class/infiniband")
    node.remove("/sys/bus/pci/drivers/efa")
    for index in range(efa.COUNT):
        node.remove(efa.pci(index))


def mount_shared(node: FakeNode) -> None:
    """A shared folder is tried, whose server gives the time."""
    node.site = replace(node.site, shared_paths=["/fsx"])


def late(seconds: float) -> Edit:
    """The node's clock is off."""

    def edit(node: FakeNode) -> None:
        mount_shared(node)
        node.server_time = node.now
        node.now += seconds

    return edit


MEMORY = "/proc/meminfo"
CPU = "/sys/devices/system/cpu/online"
LIMITS = "/proc/self/limits"
LINE = "Max locked memory         {}            {}            bytes     \n"
ROWS = [
    Row("right", "clock", "PASS", mount_shared, when="gate", says="0.0 s ahead of the shared"),
    Row("some seconds off", "clock", "WARN", late(6), when="gate", says="6.0 s ahead"),
    Row("a minute off", "clock", "FAIL", late(-61), when="gate", says="61.0 s behind"),
    Row("nothing to compare with", "clock", "SKIP"),
    Row("the file server hangs", "clock", "UNKNOWN", when="gate", edit=both(
        mount_shared, lambda n: n.volumes.update({"/fsx": None}))),
    Row("kept right", "clock_sync", "PASS", says="chrony"),
    Row("not synchronised", "clock_sync", "WARN", tracking("Normal", "Not synchronised")),
    Row("stratum 0", "clock_sync", "WARN", tracking(",4,", ",0,")),
    Row("two seconds off", "clock_sync", "WARN", tracking("-0.000004711", "-2.5"), says="2.5 s"),
    Row("minutes off", "clock_sync", "FAIL", tracking("-0.000004711", "90.25")),
    Row("not a line of chronyc", "clock_sync", "UNKNOWN", tracking("Normal", "")),
    Row("no chrony, timedatectl", "clock_sync", "PASS", no_chrony("yes\n"), says="timedatectl"),
    Row("timedatectl says no", "clock_sync", "WARN", no_chrony("no\n")),
    Row("only the kernel", "clock_sync", "PASS", no_chrony(kernel=True), says="the kernel"),
    Row("only the kernel, no", "clock_sync", "WARN", no_chrony("", kernel=False)),
    Row("nobody knows", "clock_sync", "UNKNOWN", no_chrony("what?")),
    Row("all", "memory_size", "PASS"),
    Row("a module is gone", "memory_size", "FAIL", file(MEMORY, "MemTotal: 1900000000 kB"),
        action="replace", says="1812 of 2048 GiB"),
    Row("nonsense", "memory_size", "UNKNOWN", file(MEMORY, "MemTotal: much")),
    Row("less than Slurm believes", "memory_size", "WARN",
        slurm("RealMemory=2000000", "RealMemory=2100000"), rule="memory_size.slurm"),
    Row("as Slurm believes", "memory_size", "PASS", profile(memory_gib=None)),
    Row("nothing expected", "memory_size", "SKIP", nobody),
    Row("Slurm is told stories", "memory_size", "SKIP", both(
        slurm("RealMemory=2000000", "RealMemory=2100000"), profile(slurm_sizes=False))),
    Row("all", "cpu_count", "PASS"),
    Row("a socket is gone", "cpu_count", "FAIL", file(CPU, "0-95"), action="replace",
        says="96 of 192"),
    Row("one is off", "cpu_count", "FAIL", file(CPU, "0-16,18-191"), action="replace"),
    Row("nonsense", "cpu_count", "UNKNOWN", file(CPU, "0-x")),
    Row("unreadable", "cpu_count", "UNKNOWN", file(CPU, None)),
    Row("less than Slurm believes", "cpu_count", "WARN", slurm("CPUTot=192", "CPUTot=256"),
        rule="cpu_count.slurm"),
    Row("as Slurm believes", "cpu_count", "PASS", profile(cpus=None)),
    Row("nothing expected", "cpu_count", "SKIP", nobody),
    Row("no errors", "memory_errors", "PASS"),
    Row("uncorrected", "memory_errors", "FAIL", file(f"{EDAC}/mc7/ue_count", "1"),
        action="replace", says="mc7"),
    Row("unreadable", "memory_errors", "UNKNOWN", file(f"{EDAC}/mc7/ue_count", None)),
    Row("no number", "memory_errors", "UNKNOWN", file(f"{EDAC}/mc7/ce_count", "-1")),
    Row("many corrected", "memory_errors", "WARN", corrected(20_000, 5_000),
        rule="memory_errors.corrected", says="15000 memory errors within a day on mc0"),
    Row("some corrected", "memory_errors", "PASS", corrected(20_000, 15_000)),
    Row("no counters", "memory_errors", "SKIP", lambda node: node.remove(EDAC)),
    Row("all run", "services", "PASS"),
    Row("one failed", "services", "FAIL", units("active", "failed", "active"), says="munge failed"),
    Row("one is not there", "services", "FAIL", units("active", "active", "inactive")),
    Row("one is starting", "services", "WARN", units("activating", "active", "active")),
    Row("too few lines", "services", "UNKNOWN", units("active", "active")),
    Row("no systemd", "services", "UNKNOWN", lambda n: n.say(
        "systemctl", "", rc=1, err="System has not been booted with systemd as init system")),
    Row("it hangs", "services", "UNKNOWN", lambda n: n.say("systemctl", hangs=True)),
    Row("none listed", "services", "SKIP", no_services),
    Row("enough", "shm_size", "PASS"),
    Row("Docker's default", "shm_size", "WARN", shm(1, 1)),
    Row("leftovers", "shm_size", "WARN", shm(1000, 400), rule="shm_size.used", says="60% full"),
    Row("it hangs", "shm_size", "UNKNOWN", lambda n: n.volumes.update({"/dev/shm": None})),
    Row("unlimited", "memlock", "PASS", when="gate", says="all"),
    Row("large", "memlock", "PASS", file(LIMITS, LINE.format(2**40, 2**40)), when="gate"),
    Row("64 KiB", "memlock", "WARN", file(LIMITS, LINE.format(65536, 65536)), when="gate"),
    Row("no such line", "memlock", "UNKNOWN", file(LIMITS, "Max cpu time"), when="gate"),
    Row("no fabric", "memlock", "SKIP", no_fabric, when="gate"),
]  # fmt: skip
