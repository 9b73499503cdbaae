"""Runs the torch worker of burn-in and reads what it found."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from muster.process import RC_NOT_FOUND

if TYPE_CHECKING:
    from healthcheck.facts import Facts

PORT = 23000
ALLREDUCE_S = 600.0
_GRACE_S = 30.0
"""The worker ends by itself; this long after that it is killed."""


@dataclass(frozen=True)
class Burn:
    """What every process of a worker found, by its number on this node.

    Attributes:
        ranks: one answer for each device.
        why: there are none, and why.
        missing: because there is no torch here.
        hung: because somebody hung.
    """

    ranks: tuple[Mapping[str, Any], ...] = ()
    why: Optional[str] = None
    missing: bool = False
    hung: bool = False


@dataclass(frozen=True)
class Place:
    """Where this process stands among the nodes of a job step."""

    nodes: tuple[str, ...]
    index: int
    port: int


def parse(text: str) -> Burn:
    """The last JSON line of the worker; a rank without a full answer makes the whole unknown."""
    said: object = None
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                said = None
    if not isinstance(said, dict):
        return Burn(why="no answer")
    if said.get("error"):
        return Burn(why=str(said["error"]), missing=said.get("missing") is True)
    ranks = said.get("ranks")
    if not isinstance(ranks, list) or not ranks or not all(isinstance(r, dict) for r in ranks):
        return Burn(why="an answer of a form that nobody knows")
    for rank in ranks:
        if rank.get("error") or type(rank.get("wrong")) is not int:
            return Burn(
                why=str(rank.get("error") or "half an answer"),
                missing=rank.get("missing") is True,
                hung=any(one.get("hung") is True for one in ranks),
            )
    return Burn(tuple(ranks))


def _run(facts: Facts, order: dict[str, Any]) -> Burn:
    source = pkgutil.get_data("healthcheck", "deep/torch_worker.py")
    argv = [*facts.site.deep_python, "-c", (source or b"").decode(), json.dumps(order)]
    done = facts.env.run(argv, float(order["limit_s"]) + _GRACE_S)
    if done.rc == RC_NOT_FOUND:
        return Burn(why=f"{argv[0]}: no such program", missing=True)
    if done.timed_out:
        return Burn(why=done.reason, hung=True)
    found = parse(done.out)
    return Burn(why=done.reason) if found.why == "no answer" and not done.ok else found


def matmul(facts: Facts) -> Burn:
    """Products of matrices on every device, for `deep_s` seconds; for `facts.once`."""
    seconds = facts.site.deep_s
    return _run(facts, {"what": "matmul", "seconds": seconds, "limit_s": seconds + 300})


def allreduce(facts: Facts) -> Burn:
    """All-reduce among the devices of this node; for `facts.once`."""
    here = {"nodes": 1, "node": 0, "master": "127.0.0.1", "port": PORT}
    return _run(facts, {"what": "allreduce", "limit_s": ALLREDUCE_S, **here})


def place(facts: Facts) -> Optional[Place]:
    """The two nodes of this job step; None: this is none of two tasks on two nodes."""
    say = facts.env.variable
    index = say("SLURM_PROCID")
    if (say("SLURM_STEP_NUM_NODES"), say("SLURM_STEP_NUM_TASKS")) != ("2", "2"):
        return None
    listed = say("SLURM_STEP_NODELIST") or ""
    done = facts.env.run(["scontrol", "show", "hostnames", listed], 10)
    nodes = tuple(re.findall(r"[A-Za-z0-9._-]+", done.out)) if done.ok else ()
    numbers = re.findall(r"\d+", f"{say('SLURM_JOB_ID')} {say('SLURM_STEP_ID')}")
    if len(nodes) != 2 or index not in ("0", "1"):
        return None
    # Another port for each step: a pair may follow another one on the same node.
    return Place(nodes, int(index), PORT + 1 + sum(map(int, numbers)) % 5000)


def pair(facts: Facts) -> Burn:
    """All-reduce between the two nodes of this job step; for `facts.once`."""
    at = facts.once(place)
    if at is None:
        return Burn(why="it is not one of two tasks on two nodes: srun -N2 -n2")
    here = {"nodes": 2, "node": at.index, "master": at.nodes[0], "port": at.port}
    return _run(facts, {"what": "allreduce", "limit_s": facts.site.deep_pair_s, **here})
