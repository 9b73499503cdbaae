"""GPUs with a past: a GPU that was condemned comes back in another node, or in the same one.

Only before somebody gets the node. A node in service is drained for what its GPUs do, not for what
is written about them.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.each_gpu import NotUnderstoodError, each_gpu, on
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.gpu import Gpu
from healthcheck.read.strikes import records
from healthcheck.registry import check
from healthcheck.strikes import condemned

_DAY_S = 86400.0


@check("gpu_strikes", when=("gate", "return", "deep"))
def gpu_strikes(facts: Facts) -> Iterator[Result]:
    """No GPU that was to be replaced in the last 30 days, in this node or in another."""

    def look(gpu: Gpu, _: str) -> Iterator[Result]:
        record = facts.once(records)[gpu.name]
        strike = condemned(record.strikes, facts.env.now())
        if strike is not None:
            days = max(0.0, facts.env.now() - strike.time) / _DAY_S
            why = f"{strike.rule} on node {strike.node}, {days:.0f} days ago"
            yield on(gpu, "FAIL", f"has a GPU that was to be replaced ({why}):")
        elif record.gap is not None:
            raise NotUnderstoodError(f"a past that cannot be read ({record.gap})")
        elif facts.site.strikes_path is None:
            yield on(gpu, "SKIP", "knows no strikes of other nodes (strikes_path in the site file)")

    yield from each_gpu(facts, ("uuid",), look, "no GPU was to be replaced lately")
