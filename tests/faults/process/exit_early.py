"""All ranks exit 0 long before training is complete, once: a framework that swallows errors."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

LEAVE = Sabotage(python="import os; os._exit(0)", bash="exit 0")


@fault(recovers("retry", "left_early"), sabotage=LEAVE)
def exit_early(stage: Stage) -> None:
    """Nothing to do from outside: the rank does it to itself."""
