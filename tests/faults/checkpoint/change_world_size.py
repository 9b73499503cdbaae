"""The run goes on with 3 nodes instead of 4, and later with 4 again: resharding both ways."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage


@fault(recovers("new job"), ranks=4)
def change_world_size(stage: Stage) -> None:
    for num_nodes in (3, 4):
        stage.wait_new_checkpoint()
        stage.run.cancel()
        stage.submit_again(num_nodes)
