"""NVIDIA devices on the PCI bus, from /sys: what is there even when the driver is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from healthcheck.facts import Facts

BUS = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_NVIDIA_BYTES = b"\xde\x10"
_GPU = ("0x0300", "0x0302")  # VGA and 3D controllers
_SWITCH = "0x0680"  # other bridge, as NVSwitch calls itself
_ERRORS = {
    "fatal": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
    "nonfatal": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "correctable": ("aer_dev_correctable", "TOTAL_ERR_COR"),
}


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        bus: its address, 0000:53:00.0.
        kind: gpu, switch, other, or unread: its vendor or its class could not be read.
        alive: its configuration space answers; None: not readable.
        errors: counts of AER by severity; a missing key: the kernel does not count them.
    """

    bus: str
    kind: str
    alive: Optional[bool] = None
    errors: Mapping[str, int] = field(default_factory=dict)


def parse_errors(text: Optional[str], total: str) -> Optional[int]:
    """The total in one of the aer_dev_* files: lines of a name and a count."""
    found = re.search(rf"^{total} (\d{{1,18}})$", text or "", re.MULTILINE)
    return int(found[1]) if found else None


def config_alive(start: Optional[bytes]) -> Optional[bool]:
    """Whether a configuration space starts like that of an NVIDIA device; ff: nobody answers."""
    if start is None or len(start) < 4:
        return None
    if start[:4] == b"\xff\xff\xff\xff":
        return False
    return True if start[:2] == _NVIDIA_BYTES else None


def nvidia_devices(facts: Facts) -> tuple[Device, ...]:
    """All NVIDIA devices, and those that may be some; empty when /sys shows none."""
    vendors = {bus: _hex(facts, bus, "vendor", 4) for bus in facts.env.names(BUS)}
    return tuple(
        _device(facts, bus, _hex(facts, bus, "class", 6) if vendor else None)
        for bus, vendor in vendors.items()
        if vendor in (_NVIDIA, None)
    )


def _hex(facts: Facts, bus: str, name: str, digits: int) -> Optional[str]:
    """A number as /sys writes it, 0x10de; None: it is not readable."""
    text = facts.env.read(f"{BUS}/{bus}/{name}") or ""
    return text if re.fullmatch(rf"0x[0-9a-f]{{{digits}}}", text) else None


def _device(facts: Facts, bus: str, number: Optional[str]) -> Device:
    at, env = f"{BUS}/{bus}", facts.env
    if number is None:
        return Device(bus, "unread")
    kind = number[:6]  # class and subclass
    if kind not in (*_GPU, _SWITCH):
        return Device(bus, "other")
    counts = {
        name: parse_errors(env.read(f"{at}/{file}"), total)
        for name, (file, total) in _ERRORS.items()
    }
    return Device(
        bus=bus,
        kind="switch" if kind == _SWITCH else "gpu",
        alive=config_alive(env.read_bytes(f"{at}/config", 4)),
        errors={name: count for name, count in counts.items() if count is not None},
    )


def gpus(facts: Facts) -> tuple[Device, ...]:
    """The GPUs on the bus; empty for stand-ins that are on none."""
    if not facts.profile.gpus_on_pci:
        return ()
    return tuple(device for device in facts.once(nvidia_devices) if device.kind == "gpu")


def pci_gpus(facts: Facts) -> Optional[int]:
    """NVIDIA GPUs on the PCI bus; None when /sys cannot say."""
    unread = any(device.kind == "unread" for device in facts.once(nvidia_devices))
    return None if unread else len(facts.once(gpus)) or None
