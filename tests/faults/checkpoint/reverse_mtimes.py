"""The oldest checkpoint has the newest file times, as after a copy or a restore."""

import os

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "rank_failed"))
def reverse_mtimes(stage: Stage) -> None:
    stage.wait_checkpoints(3)
    newest = stage.hold_at_checkpoint()
    for age, path in enumerate(stage.run.checkpoints()):
        for file in (path, *path.rglob("*")):
            os.utime(file, (2e9 + age, 2e9 + age))
    stage.kill_rank()
    stage.check_resumes_from(newest)
