"""EFA: are all devices there, taken by their driver, up, and offered to programs?

Without a number in the profile the layers are compared: what stands on the PCI bus must have a
driver, and libfabric must offer as many.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.boot import young
from healthcheck.read.efa import efa, offered
from healthcheck.registry import check

_NONE = Result("SKIP", "has no EFA devices, and none are expected")
_UNREAD = Result("UNKNOWN", "cannot list its devices in /sys")


@check("efa_count")
def efa_count(facts: Facts) -> Iterator[Result]:
    """As many EFA devices as the profile says, each with its driver."""
    seen = facts.once(efa)
    if seen is None:
        yield _UNREAD
        return
    expected = max(facts.profile.efa_devices or 0, seen.on_bus)
    driven = seen.driven or 0
    if expected == 0:
        yield _NONE
    elif driven >= expected:
        yield Result("PASS", f"has {driven} EFA devices")
    elif facts.once(young):
        what = f"has {driven} of {expected} EFA devices so far, it has just booted"
        yield Result("FAIL", what, "efa_count.young")
    elif seen.driven is None:
        yield Result("FAIL", "has no driver for its EFA devices", "efa_count.driver")
    elif seen.on_bus == 0 and driven == 0:
        what = f"shows no EFA device where {expected} are expected"
        yield Result("FAIL", what, "efa_count.none")
    elif seen.on_bus >= expected:
        what = f"has a driver for {driven} of its {seen.on_bus} EFA devices"
        yield Result("FAIL", what, "efa_count.driver")
    else:
        yield Result("FAIL", f"has {driven} of {expected} EFA devices")


@check("efa_state")
def efa_state(facts: Facts) -> Iterator[Result]:
    """The port of every EFA device is active."""
    seen = facts.once(efa)
    if seen is None:
        yield _UNREAD
        return
    unread = [port.name for port in seen.ports if port.state is None]
    down = [
        f"{port.name} ({port.state})" for port in seen.ports if port.state not in (None, "ACTIVE")
    ]
    if not seen.ports:
        yield Result("SKIP", "has no EFA device with a port")
    elif down:
        yield Result("FAIL", f"has EFA devices that are down: {', '.join(down[:8])}")
    elif unread:
        yield Result("UNKNOWN", f"cannot read the state of {', '.join(unread[:8])}")
    else:
        yield Result("PASS", f"has {len(seen.ports)} EFA devices up")


@check("efa_provider", when=("gate", "return", "deep"))
def efa_provider(facts: Facts) -> Iterator[Result]:
    """Libfabric offers every EFA device, so that NCCL can use it."""
    seen = facts.once(efa)
    if seen is None:
        yield _UNREAD
        return
    count = len({port.device for port in seen.ports})
    if count == 0:
        yield _NONE
        return
    given = facts.once(offered)
    if given.missing:
        yield Result("SKIP", "has no fi_info: libfabric is only in containers here")
    elif given.domains is None:
        yield Result("UNKNOWN", given.why)
    elif len(given.domains) < count:
        what = f"offers {len(given.domains)} of its {count} EFA devices to programs"
        yield Result("FAIL", what)
    else:
        yield Result("PASS", f"offers {len(given.domains)} EFA devices to programs")
