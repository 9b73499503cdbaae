"""How fast two nodes send to each other: TCP between their names, and RDMA port by port."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from healthcheck.read.burn import Place, place
from healthcheck.read.infiniband import Port, fabric_ports
from muster.process import RC_NOT_FOUND, Completed

if TYPE_CHECKING:
    from healthcheck.facts import Facts

RDMA_S = 3
"""Of sending in each direction, on each port."""
TOOL = "ib_write_bw"
_NEXT_PORT = 4700  # beside that of the all-reduce, below the ports that the kernel gives away
_TRIES = 20
_ANSWER_S = 30.0
# #bytes #iterations BW-peak BW-average MsgRate
_RESULT = re.compile(r"^ *\d{1,12} +\d{1,15} +[\d.]{1,12} +(\d{1,6}\.\d{1,6})\s+[\d.]{1,12}\s*$")


@dataclass(frozen=True)
class Line:
    """TCP to this node.

    Attributes:
        gbit_s: 10^9 bits per second that arrived here.
        theirs: RDMA ports that the partner can test.
        why: it was not measured, and why.
        alone: because this is none of two nodes.
        hung: because somebody hung.
    """

    gbit_s: float = 0.0
    theirs: tuple[str, ...] = ()
    why: Optional[str] = None
    alone: bool = False
    hung: bool = False


@dataclass(frozen=True)
class Rails:
    """RDMA between ports of the same name on both nodes.

    Attributes:
        gbit_s: the slower direction of each, by port.
        broken: why a port gave no result, by port.
    """

    gbit_s: Mapping[str, float] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)


def tcp(facts: Facts) -> Line:
    """TCP in both directions; for `facts.once`."""
    at = facts.once(place)
    if at is None:
        return Line(why="it is not one of two tasks on two nodes: srun -N2 -n2", alone=True)
    order = {
        "node": at.index, "master": at.nodes[0], "port": at.port + _NEXT_PORT,
        "seconds": facts.site.deep_tcp_s, "limit_s": facts.site.deep_pair_s,
        "word": f"{at.port} {' '.join(at.nodes)}",
        "tell": [port.name for port in facts.once(testable) or ()],
    }  # fmt: skip
    said = facts.env.exchange_tcp(order)
    if said is None:
        return Line(why="it hangs", hung=True)
    return _line(said)


def _line(said: Mapping[str, Any]) -> Line:
    speed, theirs = said.get("gbit_s"), said.get("told")
    if not isinstance(speed, float):
        return Line(why=str(said.get("error") or "no answer"))
    names = theirs if isinstance(theirs, list) else []
    return Line(speed, tuple(name for name in names if isinstance(name, str)))


def testable(facts: Facts) -> Optional[list[Port]]:
    """Ports of InfiniBand that carry data and that the tool can test; None: unknown.

    RoCE is left out: which address it must use differs from site to site.
    """
    ports = facts.once(fabric_ports)
    if ports is None:
        return None
    up = [port for port in ports if port.up and port.layer == "InfiniBand"]
    if up and facts.env.run([TOOL, "--version"], 10).rc == RC_NOT_FOUND:
        return []
    return up


def rails(facts: Facts) -> Rails:
    """RDMA in both directions on every port that both nodes have; for `facts.once`."""
    at, line = facts.once(place), facts.once(tcp)
    speeds, broken = {}, {}
    for port in facts.once(testable) or ():
        if at is None or port.name not in line.theirs:
            continue
        found = [_write(facts, at, port, sender) for sender in (1, 0)]
        slowest = min((one for one in found if isinstance(one, float)), default=0.0)
        wrong = next((one for one in found if isinstance(one, str)), None)
        if wrong is None:
            speeds[port.name] = slowest
        else:
            broken[port.name] = wrong
    return Rails(speeds, broken)


def _write(facts: Facts, at: Place, port: Port, sender: int) -> float | str:
    """Gbit/s of one direction; or why there are none."""
    words = ["-d", port.device, "-i", port.port, "-p", str(at.port + _NEXT_PORT)]
    argv = [TOOL, *words, "-D", str(RDMA_S), "-F", "--report_gbits"]
    if at.index != sender:
        done = facts.env.run(argv, RDMA_S + _ANSWER_S)
    else:
        done = _until_it_listens(facts, [*argv, at.nodes[1 - sender]])
    if not done.ok:
        return done.reason
    speed = parse(done.out)
    return "an answer of a form that nobody knows" if speed is None else speed


def _until_it_listens(facts: Facts, argv: list[str]) -> Completed:
    """The other node may have started its side a little later."""
    for _ in range(_TRIES):
        done = facts.env.run(argv, RDMA_S + _ANSWER_S)
        if done.ok or done.timed_out:
            break
        facts.env.sleep(1.0)
    return done


def parse(text: str) -> Optional[float]:
    """The average of the last row of results; None: there is none."""
    found = [match for line in text.splitlines() if (match := _RESULT.match(line))]
    return float(found[-1][1]) if found else None
