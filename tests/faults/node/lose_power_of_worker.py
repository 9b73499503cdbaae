"""A worker's power goes: every process at once, connections close."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_lost"), storm=True)
def lose_power_of_worker(stage: Stage) -> None:
    stage.break_node("kill", stage.worker)
