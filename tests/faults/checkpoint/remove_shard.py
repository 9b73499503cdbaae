"""A shard is missing: the node that wrote it died before its disk did its duty."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import damage


@fault(recovers("retry", "rank_failed"))
def remove_shard(stage: Stage) -> None:
    newest = stage.hold_at_checkpoint()
    damage.largest_shard(newest).unlink()
    stage.kill_rank()
    stage.check_set_aside(newest)
