"""A worker's cable is pulled: its ranks live on, cut off, and must not publish anything."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_lost"), storm=True, ci=("ten_lines",))
def cut_network(stage: Stage) -> None:
    stage.break_node("cut", stage.worker)
