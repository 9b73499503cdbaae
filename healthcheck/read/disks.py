"""Local disks: NVMe controllers, software RAID, and what a disk says about its own health."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from healthcheck import lazy

if TYPE_CHECKING:
    from healthcheck.facts import Facts

_ELSEWHERE = ("tcp", "rdma", "fc", "loop")
_STATES = ("new", "live", "resetting", "connecting", "deleting", "deleting (no IO)", "dead")
NVME = "/sys/class/nvme"
SMART_S = 3.0
_NETWORK_DISK = "Elastic Block Store"
_ARRAY = lazy.pattern(r"^(md\S{1,30}) : (active|inactive)\b", re.MULTILINE)
_MEMBERS = lazy.pattern(r"\[([U_]{1,64})\]\s*$")
_NOT_FOUND = 127


@dataclass(frozen=True)
class Nvme:
    """One NVMe controller; what could not be read is None."""

    name: str
    model: Optional[str]
    state: Optional[str]

    @property
    def local(self) -> bool:
        """A disk of this machine: not a volume that the cloud attaches over the network."""
        return self.model is not None and _NETWORK_DISK not in self.model


@dataclass(frozen=True)
class Smart:
    """What a disk says about itself.

    Attributes:
        warning: bits: 1 spare blocks, 2 temperature, 4 reliability, 8 read-only, 16 backup, 32
            persistent memory.
        media_errors: data that it could not give back, over its life.
        used_percent: of its life, may be above 100.
        spare_percent: spare blocks left.
        spare_least_percent: below this it wants to be replaced.
    """

    warning: int
    media_errors: Optional[int] = None
    used_percent: Optional[int] = None
    spare_percent: Optional[int] = None
    spare_least_percent: Optional[int] = None


def nvme(facts: Facts) -> Optional[list[Nvme]]:
    """Every NVMe controller on a PCI bus; None: /sys cannot be read. For `facts.once`."""
    names = facts.env.entries(NVME)
    if names is None:
        return None if facts.profile.nvme_disks or not facts.env.names("/sys/class") else []
    found = []
    for name in names:
        if re.fullmatch(r"nvme\d{1,4}", name) is None:
            continue
        if facts.env.read(f"{NVME}/{name}/transport") not in _ELSEWHERE:
            found.append(Nvme(name, _model(facts, name), _state(facts, name)))
    return found


def _model(facts: Facts, name: str) -> Optional[str]:
    text = facts.env.read(f"{NVME}/{name}/model")
    return text if text and text.isascii() and text.isprintable() else None


def _state(facts: Facts, name: str) -> Optional[str]:
    text = facts.env.read(f"{NVME}/{name}/state")
    return text if text in _STATES else None


def parse_mdstat(text: str) -> dict[str, bool]:
    """Software RAID arrays in /proc/mdstat; True: every member is there."""
    arrays = {}
    starts = list(_ARRAY.finditer(text))
    for found, following in zip(starts, [*starts[1:], None]):
        body = text[found.end() : following.start() if following else len(text)]
        members = [m for m in map(_MEMBERS.search, body.splitlines()) if m]
        whole = found[2] == "active" and not any("_" in m[1] for m in members)
        arrays[found[1]] = whole
    return arrays


def arrays(facts: Facts) -> Optional[dict[str, bool]]:
    """Software RAID arrays; None: the list cannot be read. For `facts.once`."""
    text = facts.env.read("/proc/mdstat")
    if text is None:  # a kernel without md has no such file
        return None if "mdstat" in facts.env.names("/proc") else {}
    return parse_mdstat(text)


def parse_smart(text: str) -> Optional[Smart]:
    """`nvme smart-log -o json`; None: it is none. Old versions spell some keys in another way."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    warning = _number(said, "critical_warning")
    if isinstance(said.get("critical_warning"), dict):  # nvme -v writes the bits out
        warning = _number(said["critical_warning"], "value")
    if warning is None:
        return None
    return Smart(
        warning,
        _number(said, "media_errors"),
        _number(said, "percent_used", "percentage_used"),
        _number(said, "avail_spare", "available_spare"),
        _number(said, "spare_thresh", "available_spare_threshold"),
    )


def _number(said: dict[str, Any], *names: str) -> Optional[int]:
    """Large numbers are text in some versions, with blanks for thousands in others."""
    for name in names:
        value = said.get(name)
        if type(value) is int and value >= 0:
            return value
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,30}", value):
            return int(value)
    return None


def smart(facts: Facts) -> Optional[dict[str, Optional[Smart]]]:
    """What every local NVMe disk says, None where it says nothing; None: no tool for it."""
    found: dict[str, Optional[Smart]] = {}
    for disk in facts.once(nvme) or []:
        if disk.local:
            done = facts.env.run(["nvme", "smart-log", f"/dev/{disk.name}", "-o", "json"], SMART_S)
            if done.rc == _NOT_FOUND:
                return None
            found[disk.name] = parse_smart(done.out) if done.ok else None
    return found
