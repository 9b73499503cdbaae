"""A worker and the batch host vanish in the same moment: a rack's power supply."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "batch_host_lost"))
def lose_two_nodes(stage: Stage) -> None:
    worker, batch_host = stage.worker, stage.batch_host
    stage.break_node("kill", worker, silent=True)
    stage.break_node("kill", batch_host, silent=True)
