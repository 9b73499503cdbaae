"""What a process may have here: locked memory and shared memory."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Optional

from healthcheck import lazy

if TYPE_CHECKING:
    from healthcheck.facts import Facts

_MEMLOCK = lazy.pattern(r"^Max locked memory\s+(unlimited|\d{1,20})\s", re.MULTILINE)


def parse_memlock(text: str) -> Optional[float]:
    """Bytes that a process may lock, from /proc/self/limits; inf: no limit."""
    found = _MEMLOCK.search(text)
    if found is None:
        return None
    return math.inf if found[1] == "unlimited" else float(found[1])


def memlock_bytes(facts: Facts) -> Optional[float]:
    """Bytes that this process may lock; for `facts.once`."""
    return parse_memlock(facts.env.read("/proc/self/limits") or "")
