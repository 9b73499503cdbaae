"""A second rank dies while the restart after the first is still under way."""

from functools import partial

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import processes


@fault(recovers("retry", "rank_failed"), ci=("llama2_fsdp",))
def fail_during_recovery(stage: Stage) -> None:
    for rank in (1, 0):
        attempts = len(stage.run.events("attempt_started"))
        stage.run.wait(f"rank {rank}", partial(processes.ranks, stage.run, rank))
        stage.kill_rank(rank)
        stage.run.wait_event("attempt_started", attempts + 1)
