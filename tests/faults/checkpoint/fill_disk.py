"""The file system of RUN_DIR is full until somebody makes room: no node is to blame."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("wait", "storage"), own_disk=True, ci=("ten_lines",))
def fill_disk(stage: Stage) -> None:
    stage.undo.callback(stage.cluster.head, "disk-free")
    stage.hit()
    stage.cluster.head("disk-fill")
    stage.wait_said("storage")
    stage.cluster.head("disk-free")
