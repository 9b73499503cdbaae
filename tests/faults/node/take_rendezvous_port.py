"""Somebody else listens on the port between its choice and its use, once."""

from tests.faults.fault import Sabotage, fault, recovers
from tests.faults.stage import Stage

SQUAT = Sabotage(
    python="""
import builtins, os, socket
builtins.taken = socket.socket()
builtins.taken.bind(("", int(os.environ["MASTER_PORT"])))
builtins.taken.listen()
""",
    moment="start",
    ranks=(0,),
)


@fault(recovers("retry", "rank_failed"), sabotage=SQUAT)
def take_rendezvous_port(stage: Stage) -> None:
    """Nothing to do from outside: the rank does it to itself."""
