"""A real limit of a minute, Slurm's least: its warning comes, ranks save and leave, it goes on."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

# Slurm looks every 30 s, so the warning comes 10 to 40 s after the start: training has to take
# longer than that.
SLOW = Sabotage(python="import time; time.sleep(0.6)", bash="sleep 0.6", step=10, once=False)


@fault(
    recovers("requeue", "asked_to_leave", loses=0),
    options=("--time=1", "--signal=B:USR1@20"),
    sabotage=SLOW,
)
def reach_time_limit(stage: Stage) -> None:
    stage.run.wait_event("requeued")
    stage.disarm()
