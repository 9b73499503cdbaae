"""SIGSTOP to one rank: a process that waits for a device or a file for ever."""

import signal

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "hang"), storm=True, ci=("ten_lines",))
def stop_rank(stage: Stage) -> None:
    stage.signal_rank(1, signal.SIGSTOP)
