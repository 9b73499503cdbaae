"""The node with the batch script vanishes; with --no-kill the job would run for ever."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "batch_host_lost"), storm=True, ci=("ten_lines",))
def lose_batch_host(stage: Stage) -> None:
    stage.break_node("kill", stage.batch_host, silent=True)
