"""A person cancels the job: it must not come back. A new job on its RUN_DIR continues it."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("new job"), ci=("ten_lines",))
def cancel_job(stage: Stage) -> None:
    stage.hit()
    stage.run.cancel()
    stage.wait_gone()
    stage.check("a cancelled job stays cancelled", stage.run.state() == "CANCELLED")
    stage.check("no guard brought it back", not list(stage.run.run_dir.glob("rescues/*.json")))
    stage.submit_again()
