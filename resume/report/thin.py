"""Fewer points, same look: the lowest and highest of every bucket survive, so no spike is lost."""

from __future__ import annotations

from collections.abc import Sequence


def thin(points: Sequence[tuple[float, float]], most: int = 3000) -> list[tuple[float, float]]:
    """At most about `most` points of a curve, in order, with its first, last and extreme points."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) * 2 // most)
    kept = [points[0]]
    for begin in range(0, len(points), size):
        bucket = points[begin : begin + size]
        low = min(range(len(bucket)), key=lambda i: bucket[i][1])
        high = max(range(len(bucket)), key=lambda i: bucket[i][1])
        kept += [bucket[i] for i in sorted({low, high})]
    return [*kept, points[-1]]
