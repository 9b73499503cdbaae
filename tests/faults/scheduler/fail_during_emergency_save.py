"""A rank dies in the very save that it was asked for before the time limit."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

KILL = Sabotage(python="kill_rank()", bash=":", moment="publish", ranks=(0,), armed=False)


@fault(recovers("requeue", "asked_to_leave"), sabotage=KILL)
def fail_during_emergency_save(stage: Stage) -> None:
    stage.arm([0])
    stage.hit()
    stage.cluster.exec(["scancel", "--batch", "--signal=USR1", stage.run.job])
