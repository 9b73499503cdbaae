"""An administrator requeues the job."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue"), storm=True, ci=("ten_lines",))
def requeue_by_admin(stage: Stage) -> None:
    stage.hit()
    stage.cluster.exec(["scontrol", "requeue", stage.run.job])
