"""SIGUSR1, by hand, as `--signal=B:USR1@180` sends it: ranks save and leave, the job comes back."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "asked_to_leave", loses=0), ci=("ten_lines",))
def warn_of_time_limit(stage: Stage) -> None:
    stage.hit()
    stage.cluster.exec(["scancel", "--batch", "--signal=USR1", stage.run.job])
