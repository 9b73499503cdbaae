"""An administrator drains a training node: draining lets running jobs finish."""

from tests.faults.fault import fault, goes_on
from tests.faults.stage import Stage


@fault(goes_on())
def drain_node(stage: Stage) -> None:
    stage.hit(stage.worker)
    words = [f"nodename={stage.worker}", "state=drain", "reason=new cables"]
    stage.cluster.exec(["scontrol", "update", *words])
