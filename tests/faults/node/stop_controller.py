"""slurmctld is down for 60 s, and a rank dies meanwhile: no step can start until it is back."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "rank_failed"), limit_s=300)
def stop_controller(stage: Stage) -> None:
    stage.undo.callback(stage.cluster.head, "slurmctld-start")
    stage.cluster.head("slurmctld-stop")
    stage.kill_rank()
    stage.linger(60)  # the fault is a duration
    stage.cluster.head("slurmctld-start")
