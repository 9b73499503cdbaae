"""slurmd of a worker dies; its ranks live on, and Slurm takes the node out of the job."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_lost"))
def kill_slurmd(stage: Stage) -> None:
    stage.break_node("slurmd-kill", stage.worker)
