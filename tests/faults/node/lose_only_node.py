"""The only node of a job vanishes: nobody is left, Slurm itself has to bring the job back."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "supervisor_lost"), ranks=1)
def lose_only_node(stage: Stage) -> None:
    stage.break_node("kill", stage.batch_host, silent=True)
