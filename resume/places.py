"""Where each batch lies in the order of the data, as the lines of metrics.jsonl say. Pure.

The size of a batch may change at a restart: then its number says no longer where its samples are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from resume import skips

History = Sequence[tuple[int, dict[str, Any]]]
"""(training step, its line), in order."""


def place_of(line: dict[str, Any]) -> tuple[Optional[int], Optional[int]]:
    """(place of the first sample in the order of the data, number of samples), where known."""
    first, number = line.get("first_sample"), line.get("num_samples")
    known = isinstance(first, int) and isinstance(number, int)
    return (first, number) if known else (None, None)


def sizes_of(history: History) -> tuple[tuple[int, int, int], ...]:
    """Training steps in a row whose batches have the same size."""
    rows: list[tuple[int, int, int]] = []
    for step, line in history:
        _, size = place_of(line)
        if size is not None and rows and rows[-1][2] == size:
            rows[-1] = (rows[-1][0], step, size)
        elif size is not None:
            rows.append((step, step, size))
    return tuple(rows)


def misplaced(history: History, windows: Sequence[skips.Window]) -> tuple[list[int], list[int]]:
    """Batches with a gap before them, and those that begin before the one before has ended.

    Each batch begins where the one before ends, whatever their sizes. Batches that are left out
    have the size of those before them.
    """
    known = {int(line.get("batch", step)): place_of(line) for step, line in history}
    end, size, last = 0, 0, 0
    gaps: list[int] = []
    overlaps: list[int] = []
    for batch in sorted(known):
        first, number = known[batch]
        if first is None or number is None:
            continue
        size = size or number
        left_out = sum(skips.overlap((last + 1, batch - 1), window) for window in windows)
        wanted = end + size * left_out
        if last + 1 + left_out == batch:  # else batches are missing, which is said already
            gaps += [batch] if first > wanted else []
            overlaps += [batch] if first < wanted else []
        end, size, last = first + number, number, batch
    return gaps, overlaps
