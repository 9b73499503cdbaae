"""A native library of one rank reads address 0, once."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

SEGV = Sabotage(python="import ctypes; ctypes.string_at(0)", bash="kill -SEGV $BASHPID", ranks=(1,))


@fault(recovers("retry", "rank_failed"), sabotage=SEGV)
def segfault(stage: Stage) -> None:
    """Nothing to do from outside: the rank does it to itself."""
