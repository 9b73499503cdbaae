"""The kernel's out-of-memory killer ends a rank that takes more than its cgroup has."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage
from tests.harness import memory, processes

GREED = Sabotage(
    python="much = bytearray(1 << 30)",
    bash="printf -v much '%300000000s'",
    ranks=(1,),
    armed=False,
)


@fault(recovers("retry", "out_of_memory"), sabotage=GREED)
def run_out_of_memory(stage: Stage) -> None:
    pids = processes.ranks(stage.run, 1)
    stage.undo.enter_context(memory.limited(pids, 64 << 20))
    stage.arm([1])
