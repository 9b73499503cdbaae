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
    """Nodes whose checksum is not that of the majority; none without a majority.

    Args:
        checksums: of a computation that must give the same bits on every node of one GPU model.
    """
    counted = Counter(checksums.values()).most_common(1)
    if len(checksums) < FEWEST or counted[0][1] * 2 <= len(checksums):
        return []
    return sorted(node for node, said in checksums.items() if said != counted[0][0])
