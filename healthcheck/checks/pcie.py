"""PCIe: does every GPU answer on the bus, with all lanes, at full speed, without errors?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from healthcheck.counters import growth
from healthcheck.each_gpu import NO_ANSWER, each_gpu, number, on
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.gpu import Gpu, expected, without_gpus
from healthcheck.read.gpu_detail import detail
from healthcheck.read.pci import Device, gpus, nvidia_devices
from healthcheck.registry import check

_NOT_THERE = Result("SKIP", "shows no NVIDIA device on its PCI bus")
_WINDOW_S = 600.0
# A link may lose one bit in 10^12; that many replays per lane and minute follow at 16 and 32 GT/s.
_REPLAYS = {4: 0.96, 5: 1.92, 6: 3.84}
_LANES = 16
_MOST_CORRECTED = 300
_KINDS_OF_ERRORS = 3  # fatal, not fatal, corrected


def most_replays(generation: int) -> int:
    """Replays within the window that are normal for 16 lanes of this generation."""
    return int(_REPLAYS.get(generation, 0.48) * _LANES * _WINDOW_S / 60)


@check("gpu_pci")
def gpu_pci(facts: Facts) -> Iterator[Result]:
    """The configuration space of every GPU answers; ff ff ff ff: there is nobody."""
    if without_gpus(facts):
        yield Result("SKIP", "has no GPUs by its profile")
        return
    found = facts.once(gpus)
    for device in found:
        if device.alive is False:
            yield Result(
                "FAIL", f"has a GPU at {device.bus} that is dead on the bus", gpu=device.bus
            )
        elif device.alive is None:
            yield Result("UNKNOWN", f"does not show the PCI configuration of {device.bus}")
    if not found:
        yield _NOT_THERE if not facts.profile.gpus_on_pci else _unseen(facts)
    elif all(device.alive for device in found):
        whole = len(found) >= (facts.once(expected) or 0)
        what = f"has {len(found)} GPUs that answer on the bus"
        yield Result("PASS" if whole else "UNKNOWN", what)


def _unseen(facts: Facts) -> Result:
    return Result("UNKNOWN" if facts.profile.gpus else "SKIP", _NOT_THERE.detail)


@check("nvswitch_count")
def nvswitch_count(facts: Facts) -> Iterator[Result]:
    """As many NVSwitches on the PCI bus as the profile says, and all answer."""
    wanted = facts.profile.nvswitches
    if wanted is None:
        yield Result("SKIP", "has no number of NVSwitches in its profile")
        return
    found = [device for device in facts.once(nvidia_devices) if device.kind == "switch"]
    unread = [device.bus for device in facts.once(nvidia_devices) if device.kind == "unread"]
    mute = [device.bus for device in found if device.alive is None]
    dead = [device.bus for device in found if device.alive is False]
    if not facts.once(nvidia_devices):
        yield Result("UNKNOWN", _NOT_THERE.detail)
    elif len(found) < wanted <= len(found) + len(unread):
        yield Result("UNKNOWN", f"cannot read what the device at {unread[0]} is")
    elif len(found) < wanted:
        yield Result("FAIL", f"shows {len(found)} of {wanted} NVSwitches on the bus")
    elif dead:
        yield Result("FAIL", f"has an NVSwitch at {dead[0]} that is dead on the bus")
    elif mute:
        yield Result("UNKNOWN", f"does not show the PCI configuration of {mute[0]}")
    else:
        yield Result("PASS", f"shows {len(found)} NVSwitches")


@check("gpu_pcie_link")
def gpu_pcie_link(facts: Facts) -> Iterator[Result]:
    """Every GPU uses all its PCIe lanes, and under load the highest generation.

    An idle GPU slows its link down to save power; it never gives up lanes.
    """
    least = facts.profile.pcie_width or 0

    def look(gpu: Gpu, *link: str) -> Iterator[Result]:
        *counts, state = link
        lanes, all_lanes, current, highest = (number(c, "its PCIe link") for c in counts)
        wanted = max(all_lanes, least)
        if lanes < wanted:
            yield on(gpu, "FAIL", f"has {lanes} of {wanted} PCIe lanes")
        elif highest < (facts.profile.pcie_gen or 0):
            what = f"has PCIe generation {highest} of {facts.profile.pcie_gen} at most"
            yield on(gpu, "FAIL", what)
        elif current < highest and state == "P0":
            yield on(gpu, "WARN", f"has PCIe generation {current} of {highest} while it works")

    fields = (
        "pcie.link.width.current", "pcie.link.width.max",
        "pcie.link.gen.current", "pcie.link.gen.max", "pstate",
    )  # fmt: skip
    yield from each_gpu(facts, fields, look, "all GPUs have all their PCIe lanes")


@check("gpu_pcie_errors", when=("periodic", "return", "deep", "suspect", "epilog"))
def gpu_pcie_errors(facts: Facts) -> Iterator[Result]:
    """The kernel counts no fatal PCIe error of a GPU (AER), and no other ones that grow."""
    devices = facts.once(gpus)
    if not devices:
        yield _NOT_THERE if not facts.profile.gpus else _unseen(facts)
        return
    counted = [device for device in devices if len(device.errors) == _KINDS_OF_ERRORS]
    if not any(device.errors for device in devices):
        yield Result("SKIP", "has a kernel that counts no PCIe errors (AER)")
        return
    counts = {
        f"aer.{device.bus}.{kind}": count
        for device in counted
        for kind, count in device.errors.items()
    }
    grown = growth(facts, counts, _WINDOW_S)
    found = False
    for device in counted:
        for result in _errors(device, grown):
            found = True
            yield result
    if not found:
        whole = len(counted) == len(devices) >= (facts.profile.gpus or 0)
        yield Result("PASS" if whole else "UNKNOWN", f"has {len(counted)} GPUs without PCIe errors")


def _errors(device: Device, grown: Mapping[str, Optional[int]]) -> Iterator[Result]:
    """Fatal ones since boot; others only while they grow."""

    def more(kind: str) -> int:
        return grown.get(f"aer.{device.bus}.{kind}") or 0

    if device.errors.get("fatal", 0) > 0:
        what = f"had {device.errors['fatal']} fatal PCIe errors of the GPU at {device.bus}"
        yield Result("FAIL", what, gpu=device.bus)
    elif more("nonfatal") > 0:
        what = f"had {more('nonfatal')} PCIe errors of the GPU at {device.bus} within 10 min"
        yield Result("WARN", what, gpu=device.bus)
    elif more("correctable") > _MOST_CORRECTED:
        what = f"corrected {more('correctable')} PCIe errors of the GPU at {device.bus} in 10 min"
        yield Result("WARN", what, gpu=device.bus)


@check("gpu_pcie_replays", when=("periodic", "return", "deep"))
def gpu_pcie_replays(facts: Facts) -> Iterator[Result]:
    """PCIe packets of a GPU are seldom sent again."""
    seen = facts.once(detail)
    if not seen and not without_gpus(facts):
        yield NO_ANSWER
        return

    def look(gpu: Gpu, best: str) -> Iterator[Result]:
        count = seen.get(gpu.bus, {}).get("Replays Since Reset")
        if count is None:
            yield on(gpu, "UNKNOWN", "shows no count of PCIe replays")
            return
        key = f"pcie_replays.{gpu.uuid}"
        grown = growth(facts, {key: count}, _WINDOW_S)[key] or 0
        most = most_replays(number(best, "PCIe generation"))
        if grown > most:
            what = f"sent {grown} PCIe packets again within 10 min, normal are {most},"
            yield on(gpu, "WARN", what)

    yield from each_gpu(facts, ("pcie.link.gen.max",), look, "few PCIe packets are sent again")
