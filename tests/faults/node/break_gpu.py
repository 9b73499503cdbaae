"""A GPU falls off the bus; only the health check sees it, ranks on CPUs train on."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness.nodes import check_until_drained


@fault(recovers("swap", "node_unfit", loses=0), storm=True, ci=("ten_lines",))
def break_gpu(stage: Stage) -> None:
    worker = stage.worker
    stage.break_node("gpu-break", worker, gpu=3)
    check_until_drained(stage.cluster, worker)
