"""Several corpora by weight: which one the sample at a position of the stream comes from.

The weights become whole numbers, whose sum is a period. A period has exactly as many places of each
corpus as its weight says, spread so evenly that at no point of the stream a corpus is a whole
sample behind or ahead of its share. There is nothing to save: the position says it all.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from errors import Stop

LONGEST = 100_000  # places of a period; weights of more digits than that mean nothing


class Blend:
    """Places of a period, shared out."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Share out a period.

        Args:
            weights: positive, of each corpus; 7 and 3 mean the same as 0.7 and 0.3.

        Raises:
            Stop: a weight is no positive number, or has too many digits (78).
        """
        self.weights = whole_numbers(weights)
        self.period = sum(self.weights)
        self._turns = turns(self.weights)  # corpus of each place, and how often it came before

    def place(self, position: int) -> tuple[int, int]:
        """(corpus, position in the stream of that corpus) of a position of the whole stream."""
        period, turn = divmod(position, self.period)
        corpus, before = self._turns[turn]
        return corpus, period * self.weights[corpus] + before

    def counts(self, num_samples: int) -> list[int]:
        """How many of the first samples come from each corpus."""
        periods, rest = divmod(num_samples, self.period)
        found = [periods * weight for weight in self.weights]
        for corpus, _ in self._turns[:rest]:
            found[corpus] += 1
        return found


def whole_numbers(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers in the same proportions.

    Raises:
        Stop: a weight is no positive number, or the period would be too long (78).
    """
    where, fix = "data.blend", "give whole numbers, such as 7 and 3"
    if not all(
        isinstance(w, (int, float)) and not isinstance(w, bool) and 0 < w < math.inf
        for w in weights
    ):
        raise Stop(Stop.CONFIG, where, f"{list(weights)} are not positive numbers", fix)
    parts = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(part.denominator for part in parts))
    scaled = [int(part * scale) for part in parts]
    found = tuple(number // math.gcd(*scaled) for number in scaled)
    if sum(found) > LONGEST:
        what = f"{list(weights)} repeat only after {sum(found)} samples"
        raise Stop(Stop.CONFIG, where, what, "use fewer digits")
    return found


def turns(weights: Sequence[int]) -> list[tuple[int, int]]:
    """For each place of a period its corpus, and how often that corpus has come before.

    The n-th sample of a corpus of weight w in a period of p may take the places from n p / w on,
    and must have come before (n + 1) p / w. Who must come first is next: for one queue that always
    works out (Baruah and others, "Proportionate progress", 1996).
    """
    period, taken = sum(weights), [0] * len(weights)
    found: list[tuple[int, int]] = []
    for place in range(period):
        may = [c for c, w in enumerate(weights) if taken[c] * period // w <= place]
        corpus = min(may, key=lambda c: (-(-(taken[c] + 1) * period // weights[c]), c))
        found.append((corpus, taken[corpus]))
        taken[corpus] += 1
    return found
