"""Memory and CPUs: how much is there, and what the memory controllers count as errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from healthcheck import lazy
from healthcheck.read.slurm_node import slurm_node

if TYPE_CHECKING:
    from healthcheck.facts import Facts

CPU = "/sys/devices/system/cpu"
EDAC = "/sys/devices/system/edac/mc"
_MOST_CPUS = 1 << 16
_RANGE = lazy.pattern(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class SlurmSize:
    """What Slurm believes of this node; None: it does not say."""

    cpus: Optional[int] = None
    memory_mib: Optional[int] = None


@dataclass(frozen=True)
class Edac:
    """Errors that memory controllers counted since the boot, by controller."""

    uncorrected: Mapping[str, int] = field(default_factory=dict)
    corrected: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = re.findall(r"^(\w{1,40}):\s+(\d{1,18}) kB$", text, re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def memory_bytes(facts: Facts) -> Optional[int]:
    """Memory that the kernel has; for `facts.once`."""
    return parse_meminfo(facts.env.read("/proc/meminfo") or "").get("MemTotal")


def parse_cpu_list(text: Optional[str]) -> Optional[int]:
    """How many CPUs there are in a list such as `0-95,97`; an empty one is 0, nonsense None."""
    if text is None:
        return None
    count = 0
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        if found is None:
            return None
        count += max(0, int(found[2] or found[1]) - int(found[1]) + 1)
    return count if count <= _MOST_CPUS else None


def online_cpus(facts: Facts) -> Optional[int]:
    """CPUs that run; for `facts.once`."""
    return parse_cpu_list(facts.env.read(f"{CPU}/online")) or None


def slurm_size(facts: Facts) -> SlurmSize:
    """What Slurm believes of this node; for `facts.once`."""
    said = facts.once(slurm_node) or {}
    return SlurmSize(_count(said.get("CPUTot")), _count(said.get("RealMemory")))


def _count(text: Optional[str]) -> Optional[int]:
    return int(text) if text and re.fullmatch(r"[1-9][0-9]{0,12}", text) else None


def edac(facts: Facts) -> Edac:
    """Errors of every memory controller; for `facts.once`."""
    counts: dict[str, dict[str, int]] = {"ue_count": {}, "ce_count": {}}
    unreadable = []
    for controller in facts.env.names(EDAC):
        if re.fullmatch(r"mc\d{1,3}", controller) is None:
            continue
        for name, found in counts.items():
            text = facts.env.read(f"{EDAC}/{controller}/{name}") or ""
            if re.fullmatch(r"[0-9]{1,20}", text):
                found[controller] = int(text)
            else:
                unreadable.append(f"{controller}/{name}")
    return Edac(counts["ue_count"], counts["ce_count"], tuple(unreadable))
