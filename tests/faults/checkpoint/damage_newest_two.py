"""The two newest checkpoints are damaged, as by one bad disk behind both."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import damage


@fault(recovers("retry", "rank_failed", loses=3), ci=("ten_lines",))
def damage_newest_two(stage: Stage) -> None:
    stage.wait_checkpoints(3)
    stage.hold_at_checkpoint()
    for bad in stage.run.checkpoints()[:2]:
        damage.flip(damage.largest_shard(bad))
    stage.kill_rank()
