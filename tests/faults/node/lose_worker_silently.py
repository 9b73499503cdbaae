"""A worker vanishes without a last packet, as in a real power loss: no connection closes."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_lost"), storm=True, ci=("ten_lines", "llama2_fsdp"))
def lose_worker_silently(stage: Stage) -> None:
    stage.break_node("kill", stage.worker, silent=True)
