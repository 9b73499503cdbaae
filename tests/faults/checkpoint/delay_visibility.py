"""One node sees the newest checkpoint seconds late, as a cached folder of a network disk."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "rank_failed"))
def delay_visibility(stage: Stage) -> None:
    newest, node = stage.hold_at_checkpoint(), stage.worker
    stage.cluster.node("hide", node, path=str(newest))
    stage.kill_rank(0)
    stage.linger(5)  # the fault is a duration
    stage.cluster.node("show", node, path=str(newest))
    stage.check_resumes_from(newest)
