"""Which checkpoints may go: the only place that decides it, for every tier and for runs by hand.

Pure: training steps in, training steps out. The rules, in their order:

    the newest `keep` that are verified stay, and at least one always does;
    every `keep_every`-th training step stays for ever, in the last tier that there is;
    a tier loses nothing that the tier below does not hold, verified, itself or newer;
    what is newer than the newest verified ones is still being judged, and stays.

Standard library only: recipes import it through `resume`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Optional

KEEP = 3
"""How many a run by hand keeps; under the supervisor recipe.yaml says it."""


def doomed(
    steps: Iterable[int],
    verified: AbstractSet[int],
    keep: int = KEEP,
    keep_every: int = 0,
    below: Optional[AbstractSet[int]] = None,
) -> list[int]:
    """Training steps whose checkpoints may be deleted from one tier, oldest first.

    Args:
        steps: all that are published in this tier.
        verified: those of them that are known to be good.
        keep: how many verified ones stay; less than one counts as one.
        keep_every: training steps that this number divides stay; 0: none do for that.
        below: what the next tier holds verified; None: this is the last tier.
    """
    good = sorted(set(steps) & verified, reverse=True)
    kept = good[: max(keep, 1)]
    if len(kept) < max(keep, 1):
        return []  # too few are known to be good to give any away
    newest_below = max(below, default=-1) if below is not None else None

    def may_go(step: int) -> bool:
        for_ever = keep_every > 0 and step % keep_every == 0
        if below is None or newest_below is None:
            return not for_ever
        return step in below if for_ever else step <= newest_below

    return [step for step in sorted(steps) if step < kept[-1] and may_go(step)]


def next_copy(
    verified: AbstractSet[int], below: AbstractSet[int], keep_every: int = 0
) -> Optional[int]:
    """The training step to copy into the tier below next; None: it has all that it should have.

    The newest first, since that is what a restart needs; then those that stay for ever. What was
    overtaken by a newer one while a copy was made is not copied at all.

    Args:
        verified: what is known to be good in the upper tier.
        below: what the tier below holds verified.
        keep_every: as in `doomed`.
    """
    newest = max(verified, default=None)
    if newest is not None and newest > max(below, default=-1):
        return newest
    missing = [s for s in verified - below if keep_every > 0 and s % keep_every == 0]
    return min(missing, default=None)
