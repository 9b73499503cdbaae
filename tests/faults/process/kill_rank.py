"""SIGKILL to one rank: a stray kill, or a driver that ends the process of a bad GPU."""

import signal

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("retry", "rank_failed"), storm=True, ci=("llama2_fsdp",))
def kill_rank(stage: Stage) -> None:
    stage.signal_rank(1, signal.SIGKILL)
