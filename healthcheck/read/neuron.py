"""AWS Neuron devices (Trainium), from the files of their driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from healthcheck.facts import Facts

AT = "/sys/devices/virtual/neuron_device"
COUNTERS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")


@dataclass(frozen=True)
class Neuron:
    """One device; `errors` by counter since the driver was loaded, a missing one: not readable."""

    name: str
    errors: Mapping[str, int]


def parse_count(text: Optional[str]) -> Optional[int]:
    """A counter; None: it is no number."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def neurons(facts: Facts) -> tuple[Neuron, ...]:
    """All devices."""
    found = []
    for name in facts.env.names(AT):
        if re.fullmatch(r"neuron[0-9]{1,3}", name):
            counts = {
                counter: parse_count(facts.env.read(f"{AT}/{name}/stats/hardware/{counter}/total"))
                for counter in COUNTERS
            }
            found.append(Neuron(name, {c: n for c, n in counts.items() if n is not None}))
    return tuple(found)
