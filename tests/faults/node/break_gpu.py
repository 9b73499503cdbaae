"""A GPU falls off the bus; only the health check sees it, ranks on CPUs train on."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_unfit", loses=0), storm=True, ci=("ten_lines",))
def break_gpu(stage: Stage) -> None:
    stage.break_node("gpu-break", stage.worker, gpu=3)
