"""The time limit comes near: Slurm sends SIGUSR1, ranks save and leave, the job comes back."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "asked_to_leave", loses=0), ci=("ten_lines",))
def reach_time_limit(stage: Stage) -> None:
    stage.hit()
    stage.cluster.exec(["scancel", "--batch", "--signal=USR1", stage.run.job])
