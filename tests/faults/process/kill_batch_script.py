"""SIGKILL to the process of the batch script: a person, or a daemon that cleans up."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import processes


@fault(recovers("requeue", "supervisor_lost"))
def kill_batch_script(stage: Stage) -> None:
    stage.hit(stage.batch_host)
    processes.kill_batch_script(stage.run)
