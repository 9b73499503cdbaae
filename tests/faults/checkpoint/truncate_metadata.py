"""The checkpoint's metadata break off in the middle."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import damage


@fault(recovers("retry", "rank_failed"))
def truncate_metadata(stage: Stage) -> None:
    newest = stage.hold_at_checkpoint()
    damage.truncate(newest / "manifest.json", 20)
    stage.kill_rank()
    stage.check_set_aside(newest)
