"""SIGKILL to `muster run` itself: an out-of-memory killer on the batch host."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import processes


@fault(recovers("requeue", "supervisor_lost"), storm=True, ci=("ten_lines",))
def kill_supervisor(stage: Stage) -> None:
    stage.hit(stage.batch_host)
    processes.kill_supervisor(stage.run)
