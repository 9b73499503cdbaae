"""Nodes of one kind compared with each other, where nobody wrote down the right numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

FEWEST = 3
"""Of two that differ nobody can say which one is wrong."""


def slow(values: Mapping[str, float], fraction: float = 0.8) -> list[str]:
    """Nodes whose value is below `fraction` of the median; none among fewer than three nodes.

    Args:
        values: the same measurement of each node, larger is better.
        fraction: from 0 to 1.
    """
    if len(values) < FEWEST:
        return []
    least = fraction * median(values.values())
    return sorted(node for node, value in values.items() if value < least)


def differ(checksums: Mapping[str, str]) -> list[str]:
    """Nodes whose checksum is not that of the majority of their model; none without a majority.

    Args:
        checksums: `model/checksum` of a computation that gives the same bits on one model.
    """
    models: dict[str, dict[str, str]] = {}
    for node, said in checksums.items():
        models.setdefault(said.rpartition("/")[0], {})[node] = said
    found = []
    for alike in models.values():
        usual, count = Counter(alike.values()).most_common(1)[0]
        if len(alike) >= FEWEST and count * 2 > len(alike):
            found += [node for node, said in alike.items() if said != usual]
    return sorted(found)
