"""The batch host is lost in a later command of a job: finished ones are not run again."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "batch_host_lost"), commands=("true", "true"))
def die_in_third_command(stage: Stage) -> None:
    stage.break_node("kill", stage.batch_host, silent=True)
