"""The file system of RUN_DIR turns read-only for a while, as after an error of its device."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("wait", "storage"), own_disk=True)
def make_disk_read_only(stage: Stage) -> None:
    stage.undo.callback(stage.cluster.head, "disk-writable")
    stage.cluster.head("disk-read-only")
    stage.wait_said("storage")
    stage.cluster.head("disk-writable")
