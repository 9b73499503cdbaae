"""A published name without its data: the rename survived a power loss, the shards did not."""

import shutil

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.faults.twin import EVERY


@fault(recovers("retry", "rank_failed"))
def point_ahead_of_data(stage: Stage) -> None:
    newest = stage.hold_at_checkpoint()
    ahead = newest.with_name(f"step_{int(newest.name[5:]) + EVERY:08d}")
    ahead.mkdir()
    shutil.copy(newest / "manifest.json", ahead)
    stage.kill_rank()
    stage.check_set_aside(ahead)
