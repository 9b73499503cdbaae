"""A native call that never returns and holds Python's lock: no thread, no handler runs."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

HANG = Sabotage(
    python="import ctypes; ctypes.PyDLL(None).sleep(100000)",
    bash="trap '' USR2; while :; do :; done",
    ranks=(1,),
)


@fault(recovers("retry", "hang"), sabotage=HANG)
def hold_interpreter_lock(stage: Stage) -> None:
    """Nothing to do from outside: the rank does it to itself."""
