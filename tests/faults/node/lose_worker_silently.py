"""A worker vanishes without a last packet, as in a real power loss: no connection closes."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage

TRIED = ("ten_lines", "llama2_fsdp", "llama2_automodel")


@fault(recovers("swap", "node_lost"), storm=True, ci=TRIED)
def lose_worker_silently(stage: Stage) -> None:
    stage.break_node("kill", stage.worker, silent=True)
