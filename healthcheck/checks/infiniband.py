"""InfiniBand and RoCE: are the ports that training uses up, fast, and free of errors?

Without numbers in the profile nothing is called a fault: a port that nobody ever connected looks
just like one whose cable broke.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from healthcheck import counters
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.boot import young
from healthcheck.read.infiniband import Port, fabric_ports
from healthcheck.registry import check

PATIENCE_S = 240.0
"""A port may go down and come back: only after that long is the node taken away for it."""
FLAPS = 3
FLAPS_WITHIN_S = 3 * 3600.0


def _absent(facts: Facts) -> Optional[Result]:
    """Why there is nothing to look at; None: there is."""
    found = facts.once(fabric_ports)
    if found is None:
        return Result("UNKNOWN", "cannot list its devices in /sys")
    if not found and not facts.profile.ib_ports:
        return Result("SKIP", "has no InfiniBand ports, and none are expected")
    return None


@check("ib_state")
def ib_state(facts: Facts) -> Iterator[Result]:
    """As many ports are up, logically and physically, as the profile says."""
    absent = _absent(facts)
    if absent:
        yield absent
        return
    ports, expected = facts.once(fabric_ports) or [], facts.profile.ib_ports
    unread = [port for port in ports if port.up is None]
    down = [port for port in ports if port.up is False]
    num_up = len(ports) - len(unread) - len(down)
    if expected is not None and len(ports) < expected:
        rule = "ib_state.driver" if not ports else "ib_state.missing"
        what = f"has {len(ports)} of {expected} InfiniBand ports"
        yield Result("FAIL", what, "ib_state.young" if facts.once(young) else rule)
    elif expected is not None and num_up >= expected:
        counters.held_s(facts, "ib_state.down", on=False)
        yield Result("PASS", f"has {num_up} InfiniBand ports up")
    elif unread:
        yield Result("UNKNOWN", f"cannot read the state of {_names(unread)}")
    elif expected is None and down:
        yield Result("WARN", f"has {_names(down)} down", "ib_state.unused")
    elif down:
        yield _down(facts, f"has {_names(down)} down ({down[0].state}, {down[0].phys})")
    else:
        yield Result("PASS", f"has {num_up} InfiniBand ports up")


def _down(facts: Facts, what: str) -> Result:
    """Before a job it counts at once; a node in service gets some patience."""
    held_s = counters.held_s(facts, "ib_state.down", on=True) or 0.0
    if facts.when == "periodic" and held_s < PATIENCE_S:
        return Result("WARN", f"{what} for {held_s:.0f} s, which is not long", "ib_state.flap")
    return Result("FAIL", what)


@check("ib_rate")
def ib_rate(facts: Facts) -> Iterator[Result]:
    """Every port that is up has the rate of the profile; without one, that of its siblings."""
    absent = _absent(facts)
    up = [port for port in facts.once(fabric_ports) or [] if port.up]
    if absent or not up:
        yield absent or Result("SKIP", "has no InfiniBand port that is up")
        return
    unread = [port for port in up if port.rate_gbit_s is None]
    rates = [port.rate_gbit_s for port in up if port.rate_gbit_s is not None]
    expected = facts.profile.ib_rate_gbit_s
    best = expected if expected is not None else max(rates, default=0.0)
    slow = [p for p in up if p.rate_gbit_s is not None and p.rate_gbit_s < best]
    if slow and len(up) - len(slow) < (facts.profile.ib_ports or len(up)):
        what = f"has {_names(slow)} at {slow[0].rate_gbit_s:g} of {best:g} Gbit/s"
        if expected is None:
            yield Result("WARN", what, "ib_rate.uneven")
        else:
            yield Result("FAIL", what)
    elif unread:
        yield Result("UNKNOWN", f"cannot read the rate of {_names(unread)}")
    else:
        yield Result("PASS", f"has {len(up)} InfiniBand ports at {best:g} Gbit/s")


@check("ib_errors", when=("periodic", "return", "suspect"))
def ib_errors(facts: Facts) -> Iterator[Result]:
    """No port went down again and again within three hours; other errors only warn."""
    absent, ports = _absent(facts), facts.once(fabric_ports) or []
    if absent:
        yield absent
        return
    values = {f"ib.{port.name}.{name}": n for port in ports for name, n in port.counters.items()}
    if not values:
        yield Result("UNKNOWN", "cannot read the error counters of its InfiniBand ports")
        return
    grown = counters.growth(facts, values, FLAPS_WITHIN_S)
    said = False
    for port in ports:
        flaps = grown.get(f"ib.{port.name}.link_downed") or 0
        if flaps:
            said = True
            what = f"lost the link of {port.name} {flaps} times within three hours"
            yield Result("FAIL" if flaps >= FLAPS else "WARN", what)
        for name in ("link_error_recovery", "symbol_error", "port_rcv_errors"):
            more = grown.get(f"ib.{port.name}.{name}") or 0
            if more:
                said = True
                what = f"counts {more} more {name} on {port.name} than three hours ago"
                yield Result("WARN", what, "ib_errors.noise")
    if not said:
        first = all(more is None for more in grown.values())
        what = "counts for the first time" if first else "counts no new error"
        yield Result("SKIP" if first else "PASS", f"{what} on {len(ports)} InfiniBand ports")


def _names(ports: list[Port]) -> str:
    names = [port.name for port in ports]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
