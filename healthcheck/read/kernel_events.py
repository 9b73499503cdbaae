"""What the kernel says when something breaks: one table of texts, without the GPU's.

Every pattern begins at the start of a message, because the rest of one may hold a name that a user
chose. `dmesg` of any day is full of words like error and failed; only what is in the table counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Optional

from healthcheck import lazy
from healthcheck.read.kernel_log import KernelLine

RECENT_S = 3600.0
"""Of a text that only warns, older ones are history."""


@dataclass(frozen=True)
class Event:
    """One kind of text.

    Attributes:
        check: the check that looks for it.
        status: what it means; FAIL counts since the boot, WARN for an hour.
        says: to continue 'node n3 ...'; {thing}: what the pattern names so.
        source: the pattern, from the start of the message.
        pattern: the same, compiled when it is first used.
        rule: row of the policy table; None: the check's own.
    """

    check: str
    status: Literal["FAIL", "WARN"]
    says: str
    source: str
    pattern: re.Pattern[str]
    rule: Optional[str] = None


@dataclass(frozen=True)
class Seen:
    """A kind of text that is in the log: what it names, when first, and how often."""

    event: Event
    thing: str
    time: float
    text: str
    count: int = 1


_DISK = r"(?P<thing>nvme\d+)n\d+"
_OWN = r"(?P<thing>(?!loop|zram|sr|fd)[a-z][\w-]*)"  # an image that a user mounts is not ours
_PCI = r"(?P<thing>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"


def _event(
    check: str, status: Literal["FAIL", "WARN"], says: str, pattern: str, rule: Optional[str] = None
) -> Event:
    return Event(check, status, says, pattern, lazy.pattern(pattern), rule)


EVENTS: tuple[Event, ...] = (
    # Memory and processor.
    _event("kernel_memory", "FAIL", "has an uncorrected memory error ({thing})",
           r"EDAC (?P<thing>MC\d+): \d+ UE "),
    _event("kernel_memory", "FAIL", "lost a page of memory to an error ({thing})",
           r"Memory failure: (?P<thing>0x[0-9a-f]+): "),
    _event("kernel_memory", "FAIL", "has a machine check exception (CPU {thing})",
           r"mce: \[Hardware Error\]: CPU (?P<thing>\d+): Machine Check Exception: "),
    _event("kernel_memory", "FAIL", "has a hardware error that its firmware calls {thing}",
           r"(?:\{\d+\})?\[Hardware Error\]: event severity: (?P<thing>fatal|recoverable)\b"),
    _event("kernel_memory", "WARN", "corrects memory errors ({thing})",
           r"EDAC (?P<thing>MC\d+): \d+ CE ", "kernel_memory.corrected"),
    _event("kernel_memory", "WARN", "throttles its processor for heat (CPU {thing})",
           r"mce: CPU(?P<thing>\d+): (?:Core|Package) temperature(?:/speed)? (?:is )?above ",
           "kernel_memory.heat"),
    # Local disks.
    _event("kernel_nvme", "FAIL", "lost its disk {thing}",
           r"nvme (?P<thing>nvme\d+): (?:Removing after probe failure|Disabling device after reset"
           r" failure|Device not ready; aborting |Identify Controller failed)"),
    _event("kernel_nvme", "FAIL", "cannot read or write its disk {thing}",
           r"(?:blk_update_request: )?critical medium error, dev " + _DISK),
    _event("kernel_nvme", "FAIL", "cannot read or write its disk {thing}",
           r"(?:blk_update_request: I/O error, dev |I/O error, dev |Buffer I/O error on dev )"
           + _DISK),
    _event("kernel_nvme", "WARN", "waits for its disk {thing}",
           r"nvme (?P<thing>nvme\d+): (?:I/O (?:tag )?\d+ .*QID \d+ timeout"
           r"|controller is down; will reset)", "kernel_nvme.slow"),
    # File systems on them.
    _event("kernel_filesystem", "FAIL", "has a damaged file system on {thing}",
           r"EXT4-fs (?:error )?\((?:device )?" + _OWN + r"\): (?:Remounting filesystem read-only"
           r"|.*(?:comm .*: |Detected aborted journal))"),
    _event("kernel_filesystem", "FAIL", "has a damaged file system on {thing}",
           r"XFS \(" + _OWN + r"\): (?:(?:Metadata )?[Cc]orruption |Metadata I/O [Ee]rror"
           r"|Filesystem has been shut down|.*Shutting down filesystem)"),
    _event("kernel_filesystem", "FAIL", "has a damaged file system on {thing}",
           r"BTRFS (?:critical|error) \(device " + _OWN + r"\b.*\): "
           r"(?:.*forced readonly|corrupt )"),
    _event("kernel_filesystem", "FAIL", "lost a member of its array {thing}",
           r"md(?:/raid\w*)?:(?P<thing>md\w+): Disk failure on "),
    # Network cards.
    _event("kernel_nic", "FAIL", "has a network card that died ({thing})",
           r"mlx5_core " + _PCI + r":? .*(?:device's health compromised|Fatal error \d+ detected"
           r"|health recovery failed)"),
    _event("kernel_nic", "FAIL", "has a network card that died ({thing})",
           r"efa " + _PCI + r":? .*Reset attempt failed"),
    _event("kernel_nic", "WARN", "has a network card with too little power ({thing})",
           r"mlx5_core " + _PCI + r":? .*Detected insufficient power on the PCIe slot",
           "kernel_nic.warning"),
    _event("kernel_nic", "WARN", "has a network card that is too hot ({thing})",
           r"mlx5_core " + _PCI + r":? .*(?:High temperature|Temperature warning)",
           "kernel_nic.warning"),
    _event("kernel_nic", "WARN", "has a network cable with a fault ({thing})",
           r"mlx5_core " + _PCI + r":? Port module event\[error\]: ", "kernel_nic.warning"),
    _event("kernel_nic", "WARN", "has a network card that stopped sending ({thing})",
           r"NETDEV WATCHDOG: (?P<thing>[\w.-]{1,15}) .*transmit queue \d+ timed out",
           "kernel_nic.warning"),
    # The kernel itself.
    _event("kernel_stuck", "FAIL", "has a kernel that failed: {thing}",
           r"(?P<thing>BUG: unable to handle |BUG: kernel NULL pointer dereference|kernel BUG at "
           r"|Oops: |general protection fault, )"),
    _event("kernel_stuck", "FAIL", "has a processor that hung ({thing})",
           r"watchdog: Watchdog detected hard LOCKUP on (?P<thing>cpu \d+)"),
    _event("kernel_stuck", "WARN", "has processors that hang: {thing}",
           r"(?:watchdog: BUG: (?P<thing>soft lockup)|rcu: INFO: \w+ (?:self-)?detected )",
           "kernel_stuck.slow"),
    _event("kernel_stuck", "WARN", "has processes that wait for minutes",
           r"INFO: task .*:\d+ blocked for more than \d+ seconds", "kernel_stuck.slow"),
    # Programs.
    _event("kernel_program", "WARN", "killed process {thing} because memory ran out",
           r"(?:Memory cgroup out|Out) of memory: Killed process (?P<thing>\d+) "),
    _event("kernel_program", "WARN", "saw a program crash in {thing}",
           r".{1,16}\[\d+\]: segfault at .* in "
           r"(?P<thing>lib(?:nccl|cuda|cudart|torch|fabric)[\w.+-]*)\["),
)  # fmt: skip

# One look at a line instead of one per event: nearly all of ten thousand lines mean nothing.
_ANY_EVENT = lazy.pattern("|".join(event.source.replace("?P<thing>", "?:") for event in EVENTS))
_NOT_RESPONDING = lazy.pattern(r"nfs: server (\S+) not responding, (?:still trying|timed out)")
_RESPONDS = lazy.pattern(r"nfs: server (\S+) OK")
_LOST = lazy.pattern(r"Lustre: (\S+): Connection to \S+ \(at \S+\) was lost")
_RESTORED = lazy.pattern(r"Lustre: (\S+): Connection restored to ")


def meaningful(lines: Iterable[KernelLine]) -> list[KernelLine]:
    """The lines that mean something to any check of `EVENTS`."""
    match = _ANY_EVENT.match
    return [line for line in lines if match(line.text)]


def find(lines: Iterable[KernelLine], check: str, now: float) -> list[Seen]:
    """What of one check is in the log; the same thing twice is one entry with a count."""
    events = [event for event in EVENTS if event.check == check]
    seen: dict[tuple[str, str], Seen] = {}
    for line in lines:
        for event in events:
            found = event.pattern.match(line.text)
            if found is None:
                continue
            if event.status == "FAIL" or line.time >= now - RECENT_S:
                thing = (found.groupdict().get("thing") or "a stall").strip(" :,")
                known = seen.get((event.says, thing))
                seen[event.says, thing] = Seen(
                    event,
                    thing,
                    known.time if known else line.time,
                    known.text if known else line.text,
                    known.count + 1 if known else 1,
                )
            break
    return list(seen.values())


def silent_servers(lines: Iterable[KernelLine]) -> dict[str, float]:
    """Servers of shared file systems that do not answer, and since when (Unix seconds)."""
    silent: dict[str, float] = {}
    for line in lines:
        for pattern in (_NOT_RESPONDING, _LOST):
            found = pattern.match(line.text)
            if found:
                silent.setdefault(found[1], line.time)
        for pattern in (_RESPONDS, _RESTORED):
            found = pattern.match(line.text)
            if found:
                silent.pop(found[1], None)
    return silent
