"""A rank dies when every shard is sealed and the checkpoint has not got its name yet."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

KILL = Sabotage(python="kill_rank()", bash=":", moment="publish", ranks=(0,), armed=False)


@fault(recovers("retry", "rank_failed"), sabotage=KILL)
def kill_before_publish(stage: Stage) -> None:
    stage.arm([0])
