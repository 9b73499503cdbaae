"""Faults that the NVIDIA driver reports in the kernel log: Xid of a GPU, SXid of an NVSwitch.

Only the kernel's own lines are looked at, and only from their beginning, so that neither `logger`
nor a process that calls itself "Xid (PCI:..): 79" can make one up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Optional

from healthcheck import lazy
from healthcheck.facts import Facts
from healthcheck.read.gpu import Gpu, kernel_bus, smi
from healthcheck.read.kernel_log import KernelLine, KernelLog, kernel_log

_BUS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
_XID = lazy.pattern(
    rf"NVRM:\s+Xid\s+\((?:PCI:)?(?P<bus>{_BUS})(?:\.[0-7])?(?:\s+GPU-I:\d+)?(?:\s+GPU-CI:\d+)?\):"
    r"\s+(?P<number>\d{1,4})\b(?:,\s*(?P<rest>.*))?"
)
_SXID = lazy.pattern(
    rf"nvidia-nvswitch\d{{1,3}}:\s+SXid\s+\(PCI:(?P<bus>{_BUS})(?:\.[0-7])?\):"
    r"\s+(?P<number>\d{1,5})\b(?:,\s*(?P<rest>.*))?"
)
_CONTINUED = lazy.pattern(r"(?:Severity \d|Data \{|Engine instance)")
_PID = lazy.pattern(r"pid='?(\d{1,9})\b")
_CAUSED_BY = lazy.pattern(r"caused by previous Xid (\d{1,4})\s*$")
_ACTION = lazy.pattern(r"changed from (0x[0-9a-fA-F]{1,4}) \(.{0,40}?\) to (0x[0-9a-fA-F]{1,4}) \(")
RECOVERY_CHANGED = 154
_REMEMBERED = "faults.json"
_MOST = 300
_NVLINK5 = lazy.pattern(r"[A-Z0-9_]{1,40}\s+(Fatal|Nonfatal)\b")

# Lines about a GPU that is gone or cannot be started, which carry no Xid.
_OFF = lazy.pattern(
    rf"NVRM: (?:GPU (?P<a>{_BUS})\.[0-7]: GPU has fallen off the bus"
    rf"|The NVIDIA GPU (?P<b>{_BUS})\.[0-7]\b.{{0,200}}fallen off the bus|fallen off the bus)"
)
_INIT = lazy.pattern(
    rf"NVRM: GPU (?P<a>{_BUS})\.[0-7]: RmInitAdapter failed"
    rf"|nvidia: probe of (?P<b>{_BUS})\.[0-7] failed with error -\d"
    rf"|nvidia (?P<c>{_BUS})\.[0-7]: probe with driver nvidia failed with error -\d"
)
_GSP = lazy.pattern(rf"NVRM: Rate limiting GSP RPC error prints(?: for GPU at PCI:(?P<a>{_BUS}))?")
_SILENT = {"off": _OFF, "init": _INIT, "gsp": _GSP}


@dataclass(frozen=True)
class Event:
    """One fault as the driver reported it, however often.

    Attributes:
        kind: xid, sxid; or without a number: off (a GPU fell off the bus), init (it cannot be
            started), gsp (its system processor does not answer).
        number: of the Xid or SXid; 0 for the others.
        bus: PCI address without function, 0000:53:00; None: the line names none.
        time: Unix time of the first line.
        text: what came after the number.
        count: how many lines said the same.
        pid: the process that the driver names; not trusted for anything but counting.
    """

    kind: str
    number: int
    bus: Optional[str]
    time: float
    text: str = ""
    count: int = 1
    pid: Optional[str] = None

    @property
    def caused_by(self) -> Optional[int]:
        """The Xid before, that the driver says this one follows from."""
        found = _CAUSED_BY.search(self.text)
        return int(found[1]) if found else None

    @property
    def severity(self) -> Optional[str]:
        """Fatal or nonfatal in the driver's own word; None: it says neither."""
        if self.kind == "sxid":
            word = self.text.lower()
            if word.startswith("non-fatal"):
                return "nonfatal"
            return "fatal" if word.startswith("fatal") else None
        found = _NVLINK5.match(self.text)
        return found[1].lower() if found else None

    @property
    def recovery(self) -> Optional[int]:
        """Xid 154: the number of the recovery action that the driver asks for from now on."""
        found = _ACTION.search(self.text)
        return int(found[2], 16) if found else None


def parse(line: KernelLine) -> Optional[Event]:
    """The fault that a line reports; None: it reports none, or continues the one before."""
    text = line.text
    if not text.startswith(("NVRM:", "nvidia")):
        return None  # nearly all
    found = _XID.match(text)
    if found:
        rest = found["rest"] or ""
        pid = _PID.match(rest)
        return Event(
            "xid", int(found["number"]), _bus(found["bus"]), line.time, rest,
            pid=pid[1] if pid else None,
        )  # fmt: skip
    found = _SXID.match(text)
    if found:
        rest = found["rest"] or ""
        if _CONTINUED.match(rest):
            return None
        return Event("sxid", int(found["number"]), _bus(found["bus"]), line.time, rest)
    for kind, pattern in _SILENT.items():
        found = pattern.match(text)
        if found:
            bus = next((group for group in found.groups() if group), None)
            return Event(kind, 0, bus and _bus(bus), line.time, text.partition(": ")[2])
    return None


def _bus(text: str) -> str:
    """0000:53:00, however many zeros the driver wrote."""
    return text[-10:].lower() if len(text) >= 10 else text.lower()


def parse_all(lines: Iterable[KernelLine]) -> list[Event]:
    """All faults, oldest first; the same one said again is counted, not repeated."""
    found: dict[tuple[object, ...], Event] = {}
    for line in lines:
        event = parse(line)
        if event is not None:
            before = found.get(_same(event))
            found[_same(event)] = replace(before, count=before.count + 1) if before else event
    return list(found.values())


@dataclass(frozen=True)
class Faults:
    """What the driver reported since boot; `log.lines` None: the log could not be read."""

    log: KernelLog
    events: tuple[Event, ...] = ()


def faults(facts: Facts) -> Faults:
    """All faults of this boot, also those whose lines the kernel has overwritten since."""
    log = facts.once(kernel_log)
    if log.lines is None:
        return Faults(log)
    boot = facts.env.read("/proc/sys/kernel/random/boot_id") or ""
    before = read_events(facts.env.remembered(_REMEMBERED), boot)
    found = parse_all(log.lines)
    known = {_same(event) for event in found}
    lost = [event for event in before if _same(event) not in known]
    events = sorted([*found, *lost], key=lambda event: event.time)
    if found and events[-_MOST:] != before:
        facts.env.remember(_REMEMBERED, write_events(events[-_MOST:], boot))
    return Faults(log, tuple(e for e in events if facts.since is None or e.time >= facts.since))


def write_events(events: Iterable[Event], boot: str) -> str:
    """The text of the file in which faults outlive the kernel's log."""
    return json.dumps({"boot_id": boot, "events": [asdict(event) for event in events]})


def read_events(text: Optional[str], boot: str) -> list[Event]:
    """The events of this boot; none from another one, or from a damaged file."""
    try:
        said = json.loads(text or "{}")
        if not isinstance(said, dict) or said.get("boot_id") != boot:
            return []
        events = [Event(**event) for event in said["events"]]
        return [e for e in events if isinstance(e.time, float) and isinstance(e.text, str)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _same(event: Event) -> tuple[object, ...]:
    """What makes two lines one fault. The order of changes of the recovery action counts."""
    when = round(event.time) if event.number == RECOVERY_CHANGED else None
    return (event.kind, event.number, event.bus, event.pid, event.text, when)


def gpu_at(facts: Facts, bus: Optional[str]) -> Optional[Gpu]:
    """The GPU at a PCI address without function."""
    for gpu in facts.once(smi).gpus:
        if bus is not None and kernel_bus(gpu.bus).startswith(f"{bus}."):
            return gpu
    return None
