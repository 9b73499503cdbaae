"""The image of the ranks has no Slurm programs; a worker is lost all the same."""

from tests.faults.fault import HERE, fault, recovers
from tests.faults.stage import Stage

ABSENT = HERE / "sabotage" / "absent"


@fault(recovers("swap", "node_lost"), environment={"PATH": f'{ABSENT}:"$PATH"'})
def hide_scontrol(stage: Stage) -> None:
    stage.break_node("kill", stage.worker, silent=True)
