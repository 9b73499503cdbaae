"""What nvidia-smi says about every GPU, from one query per run.

A driver that does not know a field refuses the whole query; then it is asked which fields it knows,
and the query is made of those. What it does not know is None afterwards, for that field alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from healthcheck import lazy
from healthcheck.facts import Facts
from healthcheck.read.pci import pci_gpus
from healthcheck.read.slurm_node import slurm_node
from muster.process import RC_NOT_FOUND, Completed

FIELDS = (
    "index", "name", "uuid", "serial", "pci.bus_id", "driver_version", "vbios_version",
    "persistence_mode", "pstate", "utilization.gpu", "memory.used",
    "pcie.link.gen.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max",
    "temperature.gpu", "temperature.memory", "clocks_event_reasons.active",
    "clocks_event_reasons_counters.hw_thermal_slowdown",
    "clocks_event_reasons_counters.hw_power_brake_slowdown",
    "ecc.mode.current", "ecc.mode.pending", "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count", "retired_pages.pending",
    "remapped_rows.uncorrectable", "remapped_rows.pending", "remapped_rows.failure",
    "remapped_rows.histogram.none", "mig.mode.current", "mig.mode.pending",
    "fabric.state", "fabric.status", "gpu_recovery_action",
)  # fmt: skip
NEEDED = ("index", "uuid", "serial", "pci.bus_id")
"""Without these a row is no GPU; every driver of the last ten years knows them."""

_TRY_S = {"gate": 4.0, "prolog": 4.0, "epilog": 12.0}
_TRY_OTHER_S = 15.0
_IN_A_JOB = ("gate", "suspect", "pair")
_MEMORY = "nvidia_smi_fields"  # the fields that this driver knows, and its version
_REFUSED = lazy.pattern(r'Field "([^"\n]{1,120})" is not a valid field to query')
_KNOWN = lazy.pattern(r'^"([\w.]{1,120})"(?: or "([\w.]{1,120})")?', re.MULTILINE)
_UUID = lazy.pattern(r"GPU-[0-9a-fA-F-]{8,40}")
_LISTED = lazy.pattern(r"^GPU \d{1,3}: .{0,200}\(UUID: GPU-[0-9a-fA-F-]{8,40}\)\s*$", re.MULTILINE)
_GRES = lazy.pattern(r"(?:^|,)gpu(?::[^:,(]+)?:(\d{1,6})")
_ABSENT = frozenset(
    ("N/A", "Not Supported", "Function Not Found", "Requested functionality has been deprecated")
)
NONE_FOUND = "No devices were found"


@dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi: `values` by field, as printed."""

    values: Mapping[str, str]

    def get(self, field: str) -> Optional[str]:
        """A value; None: this driver or this GPU does not have it."""
        value = self.values.get(field)
        return None if value is None or value.strip("[]") in _ABSENT else value

    @property
    def index(self) -> str:
        """Its number on this node."""
        return self.values["index"]

    @property
    def uuid(self) -> str:
        """Its UUID, GPU-..."""
        return self.values["uuid"]

    @property
    def bus(self) -> str:
        """Its PCI address as the kernel writes it, 0000:53:00.0."""
        return kernel_bus(self.values["pci.bus_id"])

    @property
    def name(self) -> str:
        """The serial number, which follows a GPU into another node; else its UUID."""
        serial = self.values["serial"]
        return serial if re.fullmatch(r"[0-9]{6,20}", serial) else self.uuid


@dataclass(frozen=True)
class Smi:
    """The answer of nvidia-smi.

    Attributes:
        done: how it ended.
        gpus: the rows that name a GPU.
        hurried: the run had less time left than it should have had, so silence means nothing.
    """

    done: Completed
    gpus: tuple[Gpu, ...] = ()
    hurried: bool = False

    @property
    def missing(self) -> bool:
        """There is no such program."""
        return self.done.rc == RC_NOT_FOUND

    @property
    def unkillable(self) -> bool:
        """It hangs in the driver so that no signal reaches it: this one, or an earlier one."""
        return self.done.left_pid is not None

    @property
    def text(self) -> str:
        """All it said."""
        return f"{self.done.out}\n{self.done.err}"


def kernel_bus(bus: str) -> str:
    """nvidia-smi writes 00000000:53:00.0 where the kernel writes 0000:53:00.0."""
    return bus[-12:].lower()


def parse_gpus(text: str, fields: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Rows that name a GPU; error lines, which also stand on stdout, are none.

    The last line counts only with its line end: a number that was cut is another number.
    """
    rows = []
    for line in text.split("\n")[:-1]:
        cells = [cell.strip() for cell in line.split(",")]
        row = Gpu(dict(zip(fields, cells)))
        if len(cells) == len(fields) and _UUID.fullmatch(row.uuid) and row.index.isdecimal():
            rows.append(row)
    return tuple(rows)


def parse_known_fields(text: str) -> frozenset[str]:
    """Names in the answer to --help-query-gpu: `"pci.bus_id" or "gpu_bus_id"`, and what it is."""
    return frozenset(name for pair in _KNOWN.findall(text) for name in pair if name)


def parse_list(text: str) -> int:
    """GPUs in the answer to `nvidia-smi -L`."""
    return len(_LISTED.findall(text))


def parse_gres(gres: str) -> int:
    """GPUs in a Gres field such as `gpu:h100:8(S:0-1),shard:16`."""
    return sum(int(count) for count in _GRES.findall(gres))


def query(fields: tuple[str, ...]) -> list[str]:
    """The command that asks for these fields."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def smi(facts: Facts) -> Smi:
    """The one query of a run; asked again when it did not come back, or did not know a field."""
    limit_s = _TRY_S.get(facts.when, _TRY_OTHER_S)
    fields = _remembered(facts)
    done = facts.env.run(query(fields), limit_s)
    if not done.ok and _REFUSED.search(done.out + done.err):
        fields = _known(facts, limit_s)
        done = facts.env.run(query(fields), limit_s)
        if done.ok:
            facts.env.remember(_MEMORY, json.dumps([_boot(facts), *fields]))
    hurried = False
    if done.timed_out and done.left_pid is None:
        hurried = facts.env.left_s() < limit_s
        done = facts.env.run(query(fields), limit_s)
    return Smi(done, parse_gpus(done.out, fields), hurried and done.timed_out)


def ask(facts: Facts, command: list[str], limit_s: float) -> Completed:
    """Another question to nvidia-smi, unless it hangs: it would hang again, and take our time."""
    first = facts.once(smi).done
    return first if first.timed_out else facts.env.run(command, limit_s)


def listed(facts: Facts) -> Optional[int]:
    """GPUs that a second question shows; None: no answer. Asked when the first shows too few."""
    done = ask(facts, ["nvidia-smi", "-L"], _TRY_S.get(facts.when, _TRY_OTHER_S))
    count = parse_list(done.out)
    if done.timed_out or (not count and NONE_FOUND not in done.out + done.err):
        return None
    return count


def gres(facts: Facts) -> Optional[int]:
    """GPUs that Slurm gives this node; None: unknown."""
    return parse_gres((facts.once(slurm_node) or {}).get("Gres", "")) or None


def whole(facts: Facts) -> Optional[int]:
    """GPUs of a fit node; None: nobody knows, which is not the same as 0."""
    if facts.profile.gpus is not None:
        return facts.profile.gpus
    known = [count for count in (facts.once(gres), facts.once(pci_gpus)) if count is not None]
    return max(known) if known else None


def expected(facts: Facts) -> Optional[int]:
    """GPUs that a fit node shows to us: in a step of a job Slurm may show those of the job only."""
    total, given = facts.once(whole), facts.env.variable("SLURM_GPUS_ON_NODE") or ""
    if facts.when not in _IN_A_JOB or not re.fullmatch(r"[0-9]{1,3}", given):
        return total
    return int(given) if total is None else min(total, int(given))


def without_gpus(facts: Facts) -> bool:
    """No GPU expected by anybody, and no driver either."""
    if facts.profile.gpus == 0:
        return True
    return facts.once(expected) is None and facts.once(smi).missing


def _known(facts: Facts, limit_s: float) -> tuple[str, ...]:
    """Those of our fields that this driver knows."""
    said = facts.env.run(["nvidia-smi", "--help-query-gpu"], limit_s)
    known = parse_known_fields(said.out) if said.ok else frozenset()
    return tuple(field for field in FIELDS if field in known or field in NEEDED)


def _remembered(facts: Facts) -> tuple[str, ...]:
    """The fields that an earlier run of this boot found out; else all."""
    try:
        boot, *fields = json.loads(facts.env.remembered(_MEMORY) or "[]")
    except (ValueError, TypeError):
        return FIELDS
    kept = tuple(field for field in FIELDS if field in fields)
    return kept if boot == _boot(facts) and set(NEEDED) <= set(kept) else FIELDS


def _boot(facts: Facts) -> Optional[str]:
    return facts.env.read("/proc/sys/kernel/random/boot_id")
