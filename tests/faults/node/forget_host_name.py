"""The name service loses the training nodes, then a rank dies: restarts need no names."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "rank_failed"))
def forget_host_name(stage: Stage) -> None:
    for node in stage.nodes:
        stage.undo.callback(stage.cluster.head, "name-recall", node)
        stage.cluster.head("name-forget", node)
    stage.kill_rank()
