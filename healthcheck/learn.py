"""`muster check --learn`: the profile of a node that is known to be good.

Every expectation is taken with the same readers that the checks use. What cannot be read, or
differs between the GPUs of the node, is left out: then nothing is expected of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Optional

from healthcheck.facts import Facts
from healthcheck.profile import machine_type
from healthcheck.read.disks import nvme
from healthcheck.read.efa import efa
from healthcheck.read.gpu import smi
from healthcheck.read.infiniband import fabric_ports
from healthcheck.read.memory import memory_bytes, online_cpus
from healthcheck.read.neuron import neurons
from healthcheck.read.nvlink import status
from healthcheck.read.pci import nvidia_devices

_FLAGS = {"Enabled": True, "Disabled": False}


def learn(facts: Facts) -> list[str]:
    """The lines of a profile's YAML."""
    kind = machine_type(facts.env) or "a machine without a type"
    found = ((key, read(facts)) for key, read in LEARNT.items())
    return [
        f"# Learnt from node {facts.node}, {kind}.",
        *(f"{key}: {json.dumps(value)}" for key, value in found if value is not None),
    ]


def _alike(values: Iterable[Any]) -> Optional[Any]:
    """What all say alike; None: they differ, or there are none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _gpus(facts: Facts) -> Optional[int]:
    """None where nvidia-smi has no answer; 0 where there is no such program."""
    seen = facts.once(smi)
    return 0 if seen.missing else len(seen.gpus) or None


def _number(field: str) -> Callable[[Facts], Optional[int]]:
    """A number that all GPUs have alike."""

    def read(facts: Facts) -> Optional[int]:
        value = _alike(gpu.get(field) for gpu in facts.once(smi).gpus)
        return int(value) if value and value.isdecimal() else None

    return read


def _flag(field: str) -> Callable[[Facts], Optional[bool]]:
    """A mode that all GPUs have alike."""
    return lambda facts: _FLAGS.get(_alike(gpu.get(field) for gpu in facts.once(smi).gpus) or "")


def _values(field: str) -> Callable[[Facts], Optional[list[str]]]:
    """All values that occur."""
    return lambda facts: (
        sorted({value for gpu in facts.once(smi).gpus if (value := gpu.get(field))}) or None
    )


def _nvlinks(facts: Facts) -> Optional[int]:
    found: Optional[int] = _alike(len(gpu.up) for gpu in facts.once(status).gpus.values())
    return found


def _switches(facts: Facts) -> Optional[int]:
    return sum(device.kind == "switch" for device in facts.once(nvidia_devices)) or None


def _memory_gib(facts: Facts) -> Optional[int]:
    size = facts.once(memory_bytes)
    return size and size >> 30


def _nvme(facts: Facts) -> Optional[int]:
    return sum(disk.local for disk in facts.once(nvme) or []) or None


def _efa(facts: Facts) -> Optional[int]:
    found = facts.once(efa)
    return (found.driven or None) if found else None


def _ib_ports(facts: Facts) -> Optional[int]:
    return sum(bool(port.up) for port in facts.once(fabric_ports) or []) or None


def _ib_rate(facts: Facts) -> Optional[float]:
    rates = (port.rate_gbit_s for port in facts.once(fabric_ports) or [] if port.up)
    found: Optional[float] = _alike(rates)
    return found


LEARNT: dict[str, Callable[[Facts], Any]] = {
    "gpus": _gpus,
    "pcie_width": _number("pcie.link.width.max"),
    "pcie_gen": _number("pcie.link.gen.max"),
    "nvlinks": _nvlinks,
    "nvswitches": _switches,
    "mig": _flag("mig.mode.current"),
    "ecc": _flag("ecc.mode.current"),
    "drivers": _values("driver_version"),
    "vbios": _values("vbios_version"),
    "neuron_devices": lambda facts: len(facts.once(neurons)) or None,
    "cpus": lambda facts: facts.once(online_cpus),
    "memory_gib": _memory_gib,
    "nvme_disks": _nvme,
    "efa_devices": _efa,
    "ib_ports": _ib_ports,
    "ib_rate_gbit_s": _ib_rate,
}
