"""A worker vanishes from an allocation without a spare: only Slurm can give another."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("requeue", "node_lost"), options=("--nodes=2",))
def lose_worker_without_spare(stage: Stage) -> None:
    stage.break_node("kill", stage.worker, silent=True)
