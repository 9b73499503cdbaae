"""One bit of a shard has changed on its way to the disk; it would load without a word."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import damage


@fault(recovers("retry", "rank_failed"), ci=("llama2_fsdp",))
def flip_byte(stage: Stage) -> None:
    newest = stage.hold_at_checkpoint()
    damage.flip(damage.largest_shard(newest))
    stage.kill_rank()
    stage.check_set_aside(newest)
