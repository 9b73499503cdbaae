"""Another machine has a lost worker's name before Slurm notices: only the boot id tells."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("swap", "node_lost"))
def replace_node_at_once(stage: Stage) -> None:
    stage.break_node("replace", stage.worker)
