"""EFA devices: on the PCI bus, taken by their driver, and offered by libfabric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from healthcheck import lazy
from healthcheck.read.infiniband import EFA_DRIVER, Port, ports

if TYPE_CHECKING:
    from healthcheck.facts import Facts

FI_INFO = ("fi_info", "-p", "efa", "-t", "FI_EP_RDM")
FI_INFO_S = 5.0
_VENDOR = "0x1d0f"
_PCI_ADDRESS = lazy.pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DOMAIN = lazy.pattern(r"^\s*domain:\s*(\S+)\s*$", re.MULTILINE)
_NOT_FOUND = 127


@dataclass(frozen=True)
class Efa:
    """How many devices each layer shows.

    Attributes:
        on_bus: functions on the PCI bus.
        driven: those that the driver took; None: there is no driver.
        ports: their ports.
    """

    on_bus: int
    driven: Optional[int]
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True)
class Offered:
    """What libfabric offers; `domains` None: it was not to be learnt, and `why`."""

    domains: Optional[frozenset[str]]
    why: str = ""
    missing: bool = False


def parse_domains(text: str) -> frozenset[str]:
    """Names of devices in the output of fi_info, which shows each one several times."""
    return frozenset(name.removesuffix("-rdm") for name in _DOMAIN.findall(text))


def efa(facts: Facts) -> Optional[Efa]:
    """The devices; None: /sys cannot be read. For `facts.once`."""
    base = "/sys/bus/pci/devices"
    devices, every = facts.env.entries(base), facts.once(ports)
    if devices is None or every is None:
        return None
    on_bus = 0
    for device in devices:
        if facts.env.read(f"{base}/{device}/vendor") == _VENDOR:
            on_bus += (facts.env.read(f"{base}/{device}/device") or "").startswith("0xefa")
    taken = facts.env.entries("/sys/bus/pci/drivers/efa")
    driven = None if taken is None else sum(bool(_PCI_ADDRESS.fullmatch(n)) for n in taken)
    return Efa(on_bus, driven, tuple(port for port in every if port.driver == EFA_DRIVER))


def offered(facts: Facts) -> Offered:
    """What libfabric offers; for `facts.once`."""
    done = facts.env.run(list(FI_INFO), FI_INFO_S)
    if done.rc == _NOT_FOUND:
        return Offered(None, "has no fi_info", missing=True)
    domains = parse_domains(done.out)
    if not done.ok or not domains:
        # It ends with 61, no data, both for no device and for its own faults.
        return Offered(None, f"got no list of EFA devices from fi_info: {done.reason}")
    return Offered(domains)
