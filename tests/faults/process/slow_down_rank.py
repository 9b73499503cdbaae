"""One rank gets little of its CPU for some training steps: slow is not dead."""

import signal

from tests.faults.fault import fault, goes_on
from tests.faults.stage import Stage
from tests.harness import processes


@fault(goes_on())
def slow_down_rank(stage: Stage) -> None:
    stage.hit(stage.nodes[1])
    until = stage.run.last_step() + 20

    def burst() -> bool:
        pids = processes.ranks(stage.run, 1)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            processes.send(lambda: pids, "rank 1", number)
            stage.linger(0.2)
        return stage.run.last_step() >= until

    stage.run.wait("20 training steps", burst)
