"""The weights of one rank turn into NaN, once, as by a GPU that computes wrongly."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

NAN = Sabotage(
    python="""
import gc, torch
for thing in gc.get_objects():
    if isinstance(thing, torch.nn.Parameter):
        with torch.no_grad():
            thing.fill_(float("nan"))
""",
    ranks=(1,),
)


@fault(recovers("retry", "rank_failed"), sabotage=NAN)
def make_loss_nan(stage: Stage) -> None:
    """Nothing to do from outside: the rank does it to itself."""
