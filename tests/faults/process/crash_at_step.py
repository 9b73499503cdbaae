"""A bug that ends the program at the same training step every time: no restart can help."""

from tests.faults.fault import Sabotage, fault, stops
from tests.faults.stage import Stage

CRASH = Sabotage(python="raise RuntimeError('planted')", bash="exit 3", ranks=(0,), once=False)


@fault(stops("rank_failed", 1), sabotage=CRASH, ci=("ten_lines",))
def crash_at_step(stage: Stage) -> None:
    """Nothing to do from outside: the rank does it to itself."""
