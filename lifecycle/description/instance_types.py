"""What machines of a cloud have, for descriptions that name an instance type.

From the vendor's pages of instance types: processors, threads and memory. A type that is not here
is no error: then the node itself is asked when it is created, or `hardware:` says it.
"""

from __future__ import annotations

from typing import Optional

from lifecycle.description.model import Group, Hardware

_GIB = 1024


def _gpu_machine(cores: int, memory_gib: int, gpus: int, kind: str) -> Hardware:
    return Hardware(2, cores, 2, memory_gib * _GIB, gpus, kind)


def _plain(cores: int, memory_gib: int) -> Hardware:
    return Hardware(1, cores, 2, memory_gib * _GIB)


TYPES: dict[str, Hardware] = {
    "p4d.24xlarge": _gpu_machine(24, 1152, 8, "a100"),
    "p4de.24xlarge": _gpu_machine(24, 1152, 8, "a100"),
    "p5.48xlarge": _gpu_machine(48, 2048, 8, "h100"),
    "p5e.48xlarge": _gpu_machine(48, 2048, 8, "h200"),
    "p5en.48xlarge": _gpu_machine(48, 2048, 8, "h200"),
    "p6-b200.48xlarge": _gpu_machine(48, 2048, 8, "b200"),
    "g5.48xlarge": _gpu_machine(48, 768, 8, "a10g"),
    "g6.48xlarge": _gpu_machine(48, 768, 8, "l4"),
    "c5.large": _plain(1, 4),
    "c5.xlarge": _plain(2, 8),
    "c5.2xlarge": _plain(4, 16),
    "c5.4xlarge": _plain(8, 32),
    "c5.9xlarge": _plain(18, 72),
    "m5.large": _plain(1, 8),
    "m5.xlarge": _plain(2, 16),
    "m5.2xlarge": _plain(4, 32),
    "m5.4xlarge": _plain(8, 64),
    "m5.8xlarge": _plain(16, 128),
}


def hardware_of(group: Group) -> Optional[Hardware]:
    """What the description knows of a group's machines; None: only the machine itself knows."""
    if group.hardware is not None or group.instance_type is None:
        return group.hardware
    return TYPES.get(group.instance_type[3 * group.instance_type.startswith("ml.") :])
