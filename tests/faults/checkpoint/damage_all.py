"""Every checkpoint is damaged: the run must stop, not start from zero without a word."""

from tests.faults.fault import fault, stops
from tests.faults.stage import Stage
from tests.harness import damage


@fault(stops("rank_failed", 65), ci=("ten_lines",))
def damage_all(stage: Stage) -> None:
    stage.hold_at_checkpoint()
    for bad in stage.run.checkpoints():
        damage.flip(damage.largest_shard(bad))
    stage.kill_rank()
