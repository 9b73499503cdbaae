"""A rank dies between the publication of a checkpoint and the removal of old ones."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

KILL = Sabotage(python="kill_rank()", bash=":", moment="published", ranks=(0,), armed=False)


@fault(recovers("retry", "rank_failed"), sabotage=KILL)
def kill_after_publish(stage: Stage) -> None:
    stage.wait_checkpoints(3)
    stage.arm([0])
