"""The checkpoint's metadata are missing."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "rank_failed"))
def remove_metadata(stage: Stage) -> None:
    newest = stage.hold_at_checkpoint()
    (newest / "manifest.json").unlink()
    stage.kill_rank()
    stage.check_set_aside(newest)
