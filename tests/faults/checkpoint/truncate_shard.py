"""The end of a shard is missing, as after a full disk or a copy that broke off."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import damage


@fault(recovers("retry", "rank_failed"))
def truncate_shard(stage: Stage) -> None:
    newest = stage.hold_at_checkpoint()
    damage.truncate(damage.largest_shard(newest))
    stage.kill_rank()
    stage.check_set_aside(newest)
