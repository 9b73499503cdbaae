"""When this node booted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Optional

from healthcheck import lazy

if TYPE_CHECKING:
    from healthcheck.facts import Facts

YOUNG_S = 300.0
"""Some devices show up minutes after the boot: until then a missing one is no broken one."""

_BTIME = lazy.pattern(r"^btime (\d{1,12})$", re.MULTILINE)


def uptime_s(facts: Facts) -> Optional[float]:
    """Seconds since the boot; for `facts.once`."""
    up = re.match(r"\d{1,12}(\.\d{1,6})?", facts.env.read("/proc/uptime") or "")
    if up:
        return float(up[0])
    since = _BTIME.search(facts.env.read("/proc/stat") or "")
    return facts.env.now() - float(since[1]) if since else None


def young(facts: Facts) -> bool:
    """Whether it has just booted; unknown counts as young, which blames nobody."""
    up = facts.once(uptime_s)
    return up is None or up < YOUNG_S
