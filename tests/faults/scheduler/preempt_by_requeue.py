"""A job of a higher tier takes the nodes; PreemptMode=REQUEUE puts ours back into the queue."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "asked_to_leave", loses=0), options=("--partition=requeued",))
def preempt_by_requeue(stage: Stage) -> None:
    stage.hit()
    urgent = ["sbatch", "--partition=urgent", "--nodes=5", "--exclusive", "--output=/dev/null"]
    stage.cluster.exec([*urgent, "--wrap", "sleep 1"])
