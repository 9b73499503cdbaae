"""Data that is left out on purpose: windows of batches, and which batch a training step takes then.

A batch is the data of one training step; they are numbered from 1 in the order of the data. Without
windows training step n takes batch n. The loss guard adds a window when it goes back behind a
spike; windows stay for the rest of the run. Standard library only: recipes import it through
`resume`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Window = tuple[int, int]
"""First and last batch, both left out."""


def batch_of(step: int, windows: Sequence[Window]) -> int:
    """The batch that a training step takes: the step-th of those that are not left out.

    Args:
        step: 1 or more.
        windows: in any order, may overlap.
    """
    batch = step
    for first, last in merged(windows):
        if first > batch:
            break
        batch += last - first + 1
    return batch


def merged(windows: Iterable[Window]) -> list[Window]:
    """The same windows, in order, none touching another."""
    found: list[Window] = []
    for first, last in sorted(windows):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def overlap(one: Window, other: Window) -> int:
    """How many batches are in both."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)


def text(windows: Iterable[Window]) -> str:
    """11-25,40-41: the value of MUSTER_SKIP."""
    return ",".join(f"{first}-{last}" for first, last in merged(windows))


def parse(value: str) -> list[Window]:
    """The inverse of `text`.

    Raises:
        ValueError: not of this form.
    """
    windows = []
    for part in value.split(",") if value else []:
        first, _, last = part.partition("-")
        window = (int(first), int(last))
        if not 1 <= window[0] <= window[1]:
            raise ValueError(f"{part} is no window of batches")
        windows.append(window)
    return merged(windows)


def fold(entries: Iterable[dict[str, Any]]) -> list[Window]:
    """All windows that the journal tells of."""
    told = [e["skip"] for e in entries if e.get("event") == "rolled_back" and e.get("skip")]
    return merged(window for value in told for window in parse(value))
