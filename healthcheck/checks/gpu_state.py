"""GPUs: what the driver itself says about their state, modes, clocks and temperature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from healthcheck.counters import growth
from healthcheck.each_gpu import NotUnderstoodError, each_gpu, flag, number, on
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.boot import uptime_s
from healthcheck.read.gpu import Gpu, smi
from healthcheck.read.gpu_detail import Temperatures, temperatures
from healthcheck.registry import check

_SETTINGS = ("gate", "periodic", "return", "deep")  # what nobody changes between two jobs

# What nvidia-smi, and NVML by number, call the action that brings a GPU back.
_RECOVERY = {
    "none": None, "0": None,
    "reset": "reset", "gpu reset": "reset", "1": "reset",
    "reboot": "reboot", "node reboot": "reboot", "2": "reboot",
    "drain p2p": "drain", "3": "drain",
    "drain and reset": "reset", "4": "reset",
}  # fmt: skip

# Bits of clocks_event_reasons.active that slow a GPU down against its will.
_SLOWED = {0x08: "hardware slowdown", 0x20: "software thermal slowdown",
           0x40: "hardware thermal slowdown", 0x80: "power brake"}  # fmt: skip
_SLOW_WINDOW_S = 1200.0
_SLOW_US = 600e6  # half of the window
_FABRIC_STATES = ("completed", "in progress", "not started")
_TRAINING_S = 180.0  # so long NVLink may take after a boot


@check("gpu_recovery")
def gpu_recovery(facts: Facts) -> Iterator[Result]:
    """The driver asks for no action that would bring a GPU back: no reset, reboot or drain."""
    fit = "the driver asks for no recovery action"
    yield from each_gpu(facts, ("gpu_recovery_action",), _recovery, fit)


def _recovery(gpu: Gpu, action: str) -> Iterator[Result]:
    if action.lower() not in _RECOVERY:
        raise NotUnderstoodError(f"the recovery action {action}")
    wanted = _RECOVERY[action.lower()]
    if wanted is not None:
        what = f"has a driver that asks for: {action},"
        yield on(gpu, "FAIL", what, rule=f"gpu_recovery.{wanted}")


@check("gpu_persistence", when=_SETTINGS)
def gpu_persistence(facts: Facts) -> Iterator[Result]:
    """Persistence mode is on: without it the driver forgets, and every start takes seconds."""
    yield from each_gpu(facts, ("persistence_mode",), _persistence, "persistence mode is on")


def _persistence(gpu: Gpu, mode: str) -> Iterator[Result]:
    if not flag(mode, "persistence mode"):
        yield on(gpu, "WARN", "has persistence mode off")


@check("gpu_mig")
def gpu_mig(facts: Facts) -> Iterator[Result]:
    """MIG is as the profile says, on all GPUs alike, and no change of it waits for a reset."""
    wanted = facts.profile.mig
    if wanted is None:
        first = next((gpu.get("mig.mode.current") for gpu in facts.once(smi).gpus), None)
        wanted = first == "Enabled"

    def look(gpu: Gpu, current: str, pending: str) -> Iterator[Result]:
        now, then = flag(current, "MIG mode"), flag(pending, "pending MIG mode")
        if now != wanted:
            what = (
                f"has MIG {'on' if now else 'off'} where it should be {'on' if wanted else 'off'}"
            )
            yield on(gpu, "WARN", what)
        elif then != now:
            yield on(gpu, "WARN", "has a change of MIG mode waiting for a reset")

    fields = ("mig.mode.current", "mig.mode.pending")
    yield from each_gpu(facts, fields, look, f"MIG is {'on' if wanted else 'off'}")


@check("gpu_fabric")
def gpu_fabric(facts: Facts) -> Iterator[Result]:
    """NVLink through NVSwitch is set up: state Completed, status Success."""
    up = facts.once(uptime_s)
    young = up is not None and up < _TRAINING_S

    def look(gpu: Gpu, state: str, status: str) -> Iterator[Result]:
        if state.lower() not in _FABRIC_STATES:
            raise NotUnderstoodError(f"the NVLink fabric state {state}")
        if (state.lower(), status.lower()) == ("completed", "success"):
            return
        what = f"has NVLink fabric state {state}, status {status}"
        yield on(gpu, "UNKNOWN" if state.lower() == "in progress" and young else "FAIL", what)

    fields = ("fabric.state", "fabric.status")
    yield from each_gpu(facts, fields, look, "the NVLink fabric is set up")


@check("gpu_versions", when=_SETTINGS)
def gpu_versions(facts: Facts) -> Iterator[Result]:
    """Driver and VBIOS are in the profile's lists, and GPUs of one kind have one VBIOS."""
    drivers, vbios = facts.profile.drivers, facts.profile.vbios
    first: dict[str, str] = {}

    def look(gpu: Gpu, kind: str, driver: str, bios: str) -> Iterator[Result]:
        if not any(c.isdigit() for c in driver) or not any(c.isdigit() for c in bios):
            raise NotUnderstoodError(f"driver {driver} and VBIOS {bios}")
        if drivers and driver not in drivers:
            yield on(gpu, "WARN", f"has driver {driver}, which its profile does not list,")
        if vbios and bios not in vbios:
            yield on(gpu, "WARN", f"has VBIOS {bios}, which its profile does not list,")
        elif first.setdefault(kind, bios) != bios:
            yield on(gpu, "WARN", f"has VBIOS {bios}, another one has {first[kind]},")

    fields = ("name", "driver_version", "vbios_version")
    yield from each_gpu(facts, fields, look, "driver and VBIOS are as they should be")


@check("gpu_throttle", when=("gate", "periodic", "return", "deep", "suspect"))
def gpu_throttle(facts: Facts) -> Iterator[Result]:
    """No GPU is slowed down by heat or power."""

    def look(gpu: Gpu, active: str) -> Iterator[Result]:
        mask = number(active, "clock event reasons")
        why = [name for bit, name in _SLOWED.items() if mask & bit]
        if _slowed_long(facts, gpu):
            what = "was slowed down by heat or power for most of the last 20 min"
            yield on(gpu, "FAIL", what, rule="gpu_throttle.long")
        elif why:
            yield on(gpu, "WARN", f"is slowed down ({', '.join(why)})")

    yield from each_gpu(facts, ("clocks_event_reasons.active",), look, "no GPU is slowed down")


def _slowed_long(facts: Facts, gpu: Gpu) -> bool:
    """By the driver's own clocks, in microseconds, which no sample can miss."""
    names = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
    values = {n: gpu.get(f"clocks_event_reasons_counters.{n}") for n in names}
    counts = {f"{n}.{gpu.uuid}": int(v) for n, v in values.items() if v and v.isdecimal()}
    grown = growth(facts, counts, _SLOW_WINDOW_S)
    return sum(count or 0 for count in grown.values()) > _SLOW_US


@check("gpu_temperature", when=("periodic", "return", "deep"))
def gpu_temperature(facts: Facts) -> Iterator[Result]:
    """Every GPU is cooler than the limit that it names itself."""
    measured = facts.once(temperatures)

    def look(gpu: Gpu, busy: str) -> Iterator[Result]:
        found = measured.get(gpu.bus)
        if found is None:
            raise NotUnderstoodError("no temperatures")
        if not found.known:
            yield on(gpu, "SKIP", "has no temperature limit to compare with")
        what = _too_hot(found)
        if what and number(busy, "utilization") == 0 and found.slowed:
            yield on(gpu, "FAIL", f"{what}, without work,", rule="gpu_temperature.idle")
        elif what:
            yield on(gpu, "WARN", what)

    yield from each_gpu(facts, ("utilization.gpu",), look, "all GPUs are cooler than their limits")


def _too_hot(seen: Temperatures) -> Optional[str]:
    if seen.slowed:
        return f"is so hot ({seen.now} C) that it slows down"
    if seen.warm:
        return f"is hotter ({seen.now} C) than its highest operating temperature"
    if seen.memory_warm:
        return f"has memory hotter ({seen.memory} C) than its highest operating temperature"
    return None
