"""Is the node's clock kept right? chrony says by how much; without it the kernel says whether."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from healthcheck import lazy

if TYPE_CHECKING:
    from healthcheck.facts import Facts

CHRONYC = ("chronyc", "-c", "tracking")
TIMEDATECTL = ("timedatectl", "show", "-p", "NTPSynchronized", "--value")
_LIMIT_S = 3.0
_NUMBER = lazy.pattern(r"[+-]?\d{1,12}(\.\d{1,12})?")


@dataclass(frozen=True)
class Sync:
    """State of the clock.

    Attributes:
        synchronised: None: nobody could say, and `source` says why.
        off_s: how far off it is believed to be; None: not known.
        source: who said so.
    """

    synchronised: Optional[bool]
    off_s: Optional[float]
    source: str


def parse_tracking(text: str) -> Optional[Sync]:
    """The line of `chronyc -c tracking`: 14 fields, the fifth is the offset, the last the state."""
    cells = text.strip().split(",")
    if len(cells) != 14 or not _NUMBER.fullmatch(cells[4]) or not re.fullmatch(r"\d+", cells[2]):
        return None
    if cells[13] not in ("Normal", "Insert second", "Delete second", "Not synchronised"):
        return None
    good = cells[13] != "Not synchronised" and 0 < int(cells[2]) < 16
    return Sync(good, abs(float(cells[4])), "chrony")


def time_sync(facts: Facts) -> Sync:
    """The clock's state; for `facts.once`."""
    done = facts.env.run(list(CHRONYC), _LIMIT_S)
    found = parse_tracking(done.out) if done.ok else None
    if found is not None:
        return found
    done = facts.env.run(list(TIMEDATECTL), _LIMIT_S)
    if done.ok and done.out.strip() in ("yes", "no"):
        return Sync(done.out.strip() == "yes", None, "timedatectl")
    kernel = facts.env.clock_synchronised()
    if kernel is not None:
        return Sync(kernel, None, "the kernel")
    return Sync(None, None, "neither chronyc nor timedatectl nor the kernel answers")
