"""What a burn-in asks of Slurm: a maintenance reservation, and a node feature for the result.

Jobs that run go on; new ones stay away until the reservation is gone. It is given back when the
work ends, however it ends, but for nodes that failed and could not be drained: those it keeps.
"""

from __future__ import annotations

import contextlib
import getpass
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from muster import slurm
from muster.errors import TemporaryError, UnavailableError
from muster.process import run

NAME = "muster_burn_in"
FEATURE = "HealthCheck:"
TIMEOUT_S = 10.0

Result = Literal["InProgress", "Passed", "Failed", "Skipped"]


@dataclass
class Reservation:
    """A reservation that is held; nodes in `keep` stay in it at the end."""

    name: str
    keep: list[str] = field(default_factory=list)


@contextlib.contextmanager
def reserved(nodes: Sequence[str], limit_s: float) -> Iterator[Reservation]:
    """Hold a maintenance reservation on these nodes for at most `limit_s` seconds.

    Raises:
        TemporaryError: there is one of this name already, on other nodes.
        UnavailableError: Slurm refuses or does not answer.
    """
    wanted = f"nodes={','.join(nodes)}"
    held = _held()
    if held is None:
        minutes = max(1, math.ceil(limit_s / 60))
        words = [f"duration={minutes}", "starttime=now", "flags=maint,ignore_jobs", wanted]
        _scontrol("create", "reservation", NAME, *words, f"users={getpass.getuser()}")
    elif set(held) <= set(nodes):
        _scontrol("update", "", NAME, wanted)
    else:
        left = ",".join(node for node in held if node not in nodes)
        fix = f"name these nodes too, or 'scontrol delete reservationname={NAME}'"
        raise TemporaryError(f"reservation {NAME}", f"holds {left} already", fix)
    reservation = Reservation(NAME)
    try:
        yield reservation
    finally:
        if reservation.keep:
            _scontrol("update", "", NAME, f"nodes={','.join(reservation.keep)}")
        else:
            _scontrol("delete", "", NAME)


def mark(name: str, result: Result) -> None:
    """Set the node's feature HealthCheck:RESULT; all its other features are kept.

    Raises:
        UnavailableError: Slurm refuses or does not answer.
    """
    node = slurm.show_nodes([name])[name]
    available, active = (
        ",".join([*(f for f in features if not f.startswith(FEATURE)), FEATURE + result])
        for features in (node.available_features, node.active_features)
    )
    words = [f"nodename={name}", f"availablefeatures={available}", f"activefeatures={active}"]
    done = run(["scontrol", "update", *words], TIMEOUT_S)
    if not done.ok:
        raise UnavailableError(f"node {name}", done.reason, "see 'scontrol ping'")


def _held() -> list[str] | None:
    """Nodes of the reservation that is there; None: there is none."""
    done = run(["scontrol", "show", "reservation", NAME], TIMEOUT_S)
    found = slurm.fields(done.out) if done.ok else {}
    return slurm.hostnames(found["Nodes"]) if "Nodes" in found else None


def _scontrol(verb: str, kind: str, name: str, *words: str) -> None:
    argv = ["scontrol", verb, *([kind] if kind else []), f"reservationname={name}", *words]
    done = run(argv, TIMEOUT_S)
    if not done.ok:
        raise UnavailableError(f"reservation {name}", done.reason, "see 'scontrol ping'")
