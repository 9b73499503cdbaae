"""InfiniBand and RoCE ports, as the kernel shows them in /sys/class/infiniband.

EFA devices stand in the same folder; their driver tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from healthcheck.facts import Facts

BASE = "/sys/class/infiniband"
COUNTERS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors")
EFA_DRIVER = "efa"


@dataclass(frozen=True)
class Port:
    """One port; what could not be read is None.

    Attributes:
        device: such as mlx5_0.
        port: its number, from 1.
        driver: of the device; mlx5_core, efa.
        layer: InfiniBand or Ethernet.
        state: logical: ACTIVE, INIT, DOWN.
        phys: of the cable: LinkUp, Polling, Disabled.
        rate_gbit_s: signalling rate of all lanes.
        counters: errors since the driver was loaded.
    """

    device: str
    port: str
    driver: Optional[str] = None
    layer: Optional[str] = None
    state: Optional[str] = None
    phys: Optional[str] = None
    rate_gbit_s: Optional[float] = None
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For a message."""
        return f"{self.device}/{self.port}"

    @property
    def up(self) -> Optional[bool]:
        """Carries data; None: one of the two states could not be read."""
        if self.state is None or self.phys is None:
            return None
        return (self.state, self.phys) == ("ACTIVE", "LinkUp")


def parse_state(text: Optional[str]) -> Optional[str]:
    """The word in `4: ACTIVE` or `5: LinkUp`."""
    found = re.fullmatch(r"\d{1,2}: ([A-Za-z_]+)", text or "")
    return found[1] if found else None


def parse_rate(text: Optional[str]) -> Optional[float]:
    """Gbit/s in `400 Gb/sec (4X NDR)`."""
    found = re.fullmatch(r"(\d{1,5}(?:\.\d)?) Gb/sec(?: \(.*\))?", text or "")
    return float(found[1]) if found else None


def ports(facts: Facts) -> Optional[list[Port]]:
    """Every port of every device; None: /sys cannot be read. For `facts.once`."""
    if facts.env.entries("/sys/class") is None:
        return None
    found = []
    for device in facts.env.names(BASE):  # without a driver for any there is no such folder
        link = facts.env.link(f"{BASE}/{device}/device/driver")
        driver = link.rpartition("/")[2] if link else None
        numbers = facts.env.names(f"{BASE}/{device}/ports")
        found += [_port(facts, device, number, driver) for number in numbers]
    return found


def _port(facts: Facts, device: str, number: str, driver: Optional[str]) -> Port:
    at = f"{BASE}/{device}/ports/{number}"
    counters = {}
    for name in COUNTERS if driver != EFA_DRIVER else ():
        text = facts.env.read(f"{at}/counters/{name}") or ""
        if re.fullmatch(r"[0-9]{1,20}", text):
            counters[name] = int(text)
    return Port(
        device=device,
        port=number,
        driver=driver,
        layer=facts.env.read(f"{at}/link_layer") or None,
        state=parse_state(facts.env.read(f"{at}/state")),
        phys=parse_state(facts.env.read(f"{at}/phys_state")),
        rate_gbit_s=parse_rate(facts.env.read(f"{at}/rate")),
        counters=counters,
    )


def fabric_ports(facts: Facts) -> Optional[list[Port]]:
    """The ports that training uses: of the profile's link layer, without EFA; None: unknown."""
    found = facts.once(ports)
    if found is None:
        return None
    layer = facts.profile.ib_link_layer
    return [port for port in found if port.driver != EFA_DRIVER and port.layer in (layer, None)]
