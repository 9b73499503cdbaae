"""A job of a higher tier takes the nodes; PreemptMode=CANCEL ends ours: it asks to be requeued."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "asked_to_leave", loses=0), options=("--partition=cancelled",))
def preempt_by_cancel(stage: Stage) -> None:
    stage.hit()
    urgent = ["sbatch", "--partition=urgent", "--nodes=5", "--exclusive", "--output=/dev/null"]
    stage.cluster.exec([*urgent, "--wrap", "sleep 1"])
