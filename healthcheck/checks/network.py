"""The line between two nodes: does it carry what it should, without any GPU in the way?

In a pair, as `pair_allreduce`: a pair does not say which of the two it was, so no node is blamed
here; burn-in swaps partners and knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks.deep import FRACTION
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.infiniband import Port, fabric_ports
from healthcheck.read.network import TOOL, rails, tcp, testable
from healthcheck.registry import check


@check("pair_tcp", when=("pair",))
def pair_tcp(facts: Facts) -> Iterator[Result]:
    """TCP from the partner reaches this node, as fast as the profile says."""
    line, wanted = facts.once(tcp), facts.profile.pair_tcp_gbit_s
    if line.alone:
        yield Result("UNKNOWN", f"did not test its line: {line.why}")
    elif line.why is not None:
        yield Result("FAIL", f"got nothing from its partner over TCP: {line.why}")
    else:
        what = f"gets {line.gbit_s:.3g} Gbit/s from its partner over TCP"
        if wanted is not None and line.gbit_s < FRACTION * wanted:
            yield Result("FAIL", f"{what} of {wanted:g}", "pair_tcp.slow", value=line.gbit_s)
        else:
            yield Result("PASS", what, value=line.gbit_s)


@check("pair_rdma", when=("pair",))
def pair_rdma(facts: Facts) -> Iterator[Result]:
    """Every InfiniBand port carries its rate to the partner's port of that name."""
    line, ports = facts.once(tcp), facts.once(testable)
    if line.why is not None or ports is None:
        yield Result("UNKNOWN", "did not test its InfiniBand ports: no line to its partner")
        return
    if not ports:
        kind = "no InfiniBand port that is up" if not facts.once(fabric_ports) else f"no {TOOL}"
        yield Result("SKIP", f"has {kind}")
        return
    both = [port for port in ports if port.name in line.theirs]
    if not both:
        yield Result("SKIP", f"has a partner without {TOOL}, or without its InfiniBand ports")
        return
    yield from _each(facts, both)


def _each(facts: Facts, ports: list[Port]) -> Iterator[Result]:
    seen = facts.once(rails)
    bad = False
    for port in ports:
        wanted = facts.profile.ib_rate_gbit_s or port.rate_gbit_s or 0.0
        speed = seen.gbit_s.get(port.name)
        if speed is None:
            why = seen.broken.get(port.name)
            yield Result("FAIL", f"got nothing through {port.name} from its partner: {why}")
            bad = True
        elif speed < FRACTION * wanted:
            what = f"carries {speed:.0f} of {wanted:g} Gbit/s through {port.name}"
            yield Result("FAIL", what, "pair_rdma.slow", value=speed)
            bad = True
    if not bad:
        least = min(seen.gbit_s.values())
        yield Result("PASS", f"carries {least:.0f} Gbit/s through each of {len(ports)} ports",
                     value=least)  # fmt: skip
