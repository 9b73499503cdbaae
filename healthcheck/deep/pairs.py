"""Which nodes are tested together, and which of them is to blame when a pair fails.

A pair that fails says only that one of two nodes, or the way between them, is bad. So partners are
swapped: a node that fails with two partners which both pass with somebody else is the bad one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

Pair = tuple[str, str]


@dataclass(frozen=True)
class Blame:
    """What the results of all rounds say.

    Attributes:
        nodes: these are bad.
        links: these pairs failed, and nobody knows which of the two it was.
    """

    nodes: list[str]
    links: list[Pair]


def rounds(nodes: Sequence[str], count: int = 3) -> list[list[Pair]]:
    """Pairs for `count` rounds, all pairs of a round at once; nobody meets a partner twice.

    The circle method of tournaments: one stays, the others move on by one. With an odd number of
    nodes another one rests in every round. Never more rounds than there are partners.
    """
    places: list[Optional[str]] = list(dict.fromkeys(nodes))
    if len(places) < 2:
        return []
    if len(places) % 2:
        places.append(None)
    found: list[list[Pair]] = []
    for _ in range(min(count, len(places) - 1)):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]))
        found.append([(a, b) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def blame(results: Mapping[Pair, Optional[bool]]) -> Blame:
    """The nodes to blame.

    Args:
        results: for each pair that was tried: passed, failed, or None when nobody knows (no torch,
            Slurm gave no nodes): that blames nobody and clears nobody.
    """
    good: dict[str, set[str]] = {}
    bad: dict[str, set[str]] = {}
    for (a, b), passed in results.items():
        if passed is not None:
            for one, other in ((a, b), (b, a)):
                (good if passed else bad).setdefault(one, set()).add(other)
    nodes = sorted(
        node
        for node, partners in bad.items()
        if not good.get(node) and len([p for p in partners if good.get(p)]) >= 2
    )
    links = [
        pair for pair, passed in results.items() if passed is False and not set(pair) & set(nodes)
    ]
    return Blame(nodes, links)
