"""Every process of a worker stands still: a kernel in trouble, a paused virtual machine."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_lost"), storm=True)
def freeze_node(stage: Stage) -> None:
    stage.break_node("freeze", stage.worker)
