"""How fast the node's own disk is, and whether it gives back what was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from healthcheck.facts import Facts

LIMIT_S = 600.0


@dataclass(frozen=True)
class Speed:
    """Megabytes (10^6) per second; `error`: why there are none."""

    write_mb_s: float = 0.0
    read_mb_s: float = 0.0
    same: bool = False
    error: Optional[str] = None


def disk_speed(facts: Facts) -> Optional[Speed]:
    """Speed of the disk at `scratch_path`; None: it hangs. For `facts.once`."""
    path, size = str(facts.site.scratch_path), facts.site.deep_disk_mib << 20
    said = facts.env.measure_disk(path, f".muster_burn_{facts.node}", size, LIMIT_S)
    if said is None:
        return None
    return Speed(**said) if said else Speed(error="no answer")
