"""What only the long answer of nvidia-smi has: limits of temperature, and PCIe replays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from healthcheck import lazy
from healthcheck.facts import Facts
from healthcheck.read.gpu import ask, kernel_bus

COMMAND = ["nvidia-smi", "-q"]
_LIMIT_S = 15.0
_GPU = lazy.pattern(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$", re.MULTILINE)
_PAIR = lazy.pattern(r"^ +([A-Z][\w .-]{1,60}?) *: (-?\d{1,9})(?: C)?$", re.MULTILINE)


@dataclass(frozen=True)
class Temperatures:
    """Degrees Celsius; None: this GPU does not say.

    Ada and Hopper may count backwards: `margin` degrees are left, and the limits are margins too.
    """

    now: Optional[int] = None
    slowdown: Optional[int] = None
    operating: Optional[int] = None
    margin: Optional[int] = None
    slowdown_margin: Optional[int] = None
    operating_margin: Optional[int] = None
    memory: Optional[int] = None
    memory_operating: Optional[int] = None

    @property
    def known(self) -> bool:
        """There is something to compare."""
        margin = None not in (self.margin, self.slowdown_margin)
        return margin or None not in (self.now, self.slowdown)

    @property
    def slowed(self) -> bool:
        """It has reached the temperature at which it slows down."""
        return _at_least(self.now, self.slowdown) or _at_least(self.slowdown_margin, self.margin)

    @property
    def warm(self) -> bool:
        """It is above its highest operating temperature."""
        return _above(self.now, self.operating) or _above(self.operating_margin, self.margin)

    @property
    def memory_warm(self) -> bool:
        """Its memory is above the highest operating temperature."""
        return _above(self.memory, self.memory_operating)


def _at_least(value: Optional[int], limit: Optional[int]) -> bool:
    return value is not None and limit is not None and value >= limit


def _above(value: Optional[int], limit: Optional[int]) -> bool:
    return value is not None and limit is not None and value > limit


def parse_detail(text: str) -> dict[str, dict[str, int]]:
    """Numbers by name for each GPU, by its PCI address as the kernel writes it.

    The last line counts only with its line end. Of a name that occurs twice the first one counts.
    """
    whole = text[: text.rfind("\n") + 1]
    parts = _GPU.split(whole)
    found = {}
    for bus, block in zip(parts[1::2], parts[2::2]):
        numbers: dict[str, int] = {}
        for name, value in _PAIR.findall(block):
            numbers.setdefault(name, int(value))
        found[kernel_bus(bus)] = numbers
    return found


def detail(facts: Facts) -> dict[str, dict[str, int]]:
    """The numbers of every GPU; empty: no answer."""
    done = ask(facts, COMMAND, _LIMIT_S)
    return parse_detail(done.out) if done.ok else {}


def temperatures(facts: Facts) -> dict[str, Temperatures]:
    """Temperatures by PCI address."""
    found = {}
    for bus, numbers in facts.once(detail).items():
        found[bus] = Temperatures(
            now=numbers.get("GPU Current Temp"),
            slowdown=numbers.get("GPU Slowdown Temp"),
            operating=numbers.get("GPU Max Operating Temp"),
            margin=numbers.get("GPU T.Limit Temp"),
            slowdown_margin=numbers.get("GPU Slowdown T.Limit Temp"),
            operating_margin=numbers.get("GPU Max Operating T.Limit Temp"),
            memory=numbers.get("Memory Current Temp"),
            memory_operating=numbers.get("Memory Max Operating Temp"),
        )
    return found
