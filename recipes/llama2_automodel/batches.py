"""Which samples a batch is made of, when the size of the batches may change at a restart.

A batch is the data of one training step, numbered from 1. Its samples are `size` positions of the
stream in a row, right behind those of the batch before. A change of the size holds from a batch on,
and is part of every later checkpoint: so no sample is left out or seen twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from errors import Stop


@dataclass(frozen=True)
class Batches:
    """Sizes in order: (first batch, its first position, samples of each batch)."""

    sizes: tuple[tuple[int, int, int], ...]

    def first(self, batch: int) -> int:
        """Position of the first sample of a batch: so many samples come before it."""
        since, position, size = next(row for row in reversed(self.sizes) if row[0] <= batch)
        return position + (batch - since) * size

    def resized(self, batch: int, size: int) -> "Batches":
        """The same, but with another size from a batch on."""
        if self.sizes[-1][2] == size:
            return self
        kept = tuple(row for row in self.sizes if row[0] < batch)
        return Batches((*kept, (batch, self.first(batch), size)))


def go_on(
    saved: Sequence[Sequence[int]] | None,
    last_batch: int,
    size: int,
    skipped: Iterable[tuple[int, int]],
) -> Batches:
    """The batches of an attempt.

    Args:
        saved: `sizes` in the checkpoint; None: from the start.
        last_batch: that was trained on before the checkpoint; 0: none.
        size: samples of a batch from now on.
        skipped: windows of batches that are left out.

    Raises:
        Stop: the size changes in front of batches that are to be left out (78).
    """
    if saved is None:
        return Batches(((1, 0, size),))
    before = Batches(tuple((int(a), int(b), int(c)) for a, b, c in saved))
    now = before.resized(last_batch + 1, size)
    ahead = [last for _, last in skipped if last > last_batch]
    if now != before and ahead:
        # Their numbers count batches of the old size: they would mean other samples.
        what = f"it changes in front of batch {max(ahead)}, which is to be left out"
        fix = f"keep {before.sizes[-1][2]} until that batch is passed"
        raise Stop(Stop.CONFIG, "train.global_batch", what, fix)
    return now
