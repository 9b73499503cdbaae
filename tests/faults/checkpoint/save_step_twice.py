"""A checkpoint that the restart did not see is there when its training step is saved again."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.faults.twin import EVERY


@fault(recovers("retry", "rank_failed"))
def save_step_twice(stage: Stage) -> None:
    stage.wait_checkpoints(2)
    newest = stage.hold_at_checkpoint()
    before = (newest / "manifest.json").read_bytes()
    aside = newest.rename(stage.recipe / "unseen")
    stage.kill_rank()
    stage.wait_restart()
    aside.rename(newest)
    following = newest.with_name(f"step_{int(newest.name[5:]) + EVERY:08d}")
    stage.run.wait("the training step to be saved again", following.exists)
    stage.check(
        "what is published is never written again",
        (newest / "manifest.json").read_bytes() == before,
    )
