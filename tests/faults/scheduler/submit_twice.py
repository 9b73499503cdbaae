"""A second job is submitted on the same RUN_DIR: it leaves, the first does not notice."""

from tests.faults.fault import fault, goes_on
from tests.faults.stage import Stage
from tests.harness.training import ENDED


@fault(goes_on(), options=("--nodes=2",), ci=("ten_lines",))
def submit_twice(stage: Stage) -> None:
    first = stage.run
    stage.hit()
    stage.submit_again()
    second, stage.run = stage.run, first
    stage.check("the second job fails", second.wait_state(ENDED) == "FAILED")
    stage.check("it names the first", f"job {first.job} on" in second.output.read_text())
