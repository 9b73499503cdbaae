"""The clock of rank 0 jumps an hour ahead; then a rank hangs, and must be found as ever."""

import signal

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

AN_HOUR = Sabotage(
    python="""
import time
now = time.time
time.time = lambda: now() + 3600
""",
    bash="date() { command date -d '+1 hour' \"$@\"; }",
    ranks=(0,),
)


@fault(recovers("retry", "hang"), sabotage=AN_HOUR)
def jump_clock(stage: Stage) -> None:
    began = stage.run.metrics[0]["time"]
    stage.run.wait("the jump", lambda: stage.run.metrics[-1]["time"] > began + 1800)
    stage.run.wait_step(stage.run.last_step() + 5)
    stage.signal_rank(1, signal.SIGSTOP)
