"""Samples by index: which tokens a training step sees follows from how many samples came before.

The order is a permutation computed from (seed, epoch, position), so there is no state to save but
the number of consumed samples, ranks are disjoint by construction, and the order does not depend on
the world size. A sample costs one read of its own bytes.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from blend import Blend
from corpora import Corpus, is_remote, open_corpus
from errors import Stop
from stream import Cache, Streamed

MASK = (1 << 64) - 1
ROUNDS = 6


def mix(value: int) -> int:
    """Scatter 64 bits (the finaliser of splitmix64): each input bit flips half of the output."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def permute(index: int, size: int, key: int) -> int:
    """Where `index` goes in the permutation of range(size) that `key` names; no memory needed.

    A Feistel network is a bijection on 2^(2b) >= size numbers; walking on until the result is below
    size makes it one on range(size). Takes fewer than 4 rounds of walking on average.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for round_ in range(ROUNDS):
            left, right = right, left ^ (mix(key ^ mix(right * ROUNDS + round_)) & low)
        index = left << half | right
        if index < size:
            return index


def sample_id(position: int, num_samples: int, seed: int) -> int:
    """The sample at a position of the endless stream; every epoch has its own order."""
    epoch, index = divmod(position, num_samples)
    return permute(index, num_samples, mix(seed ^ mix(epoch)))


def own_positions(
    consumed: int, micro_batch: int, accumulation: int, rank: int, world_size: int
) -> list[range]:
    """Positions of one rank in the training step after `consumed` samples, one range per pass."""
    return [
        range(first, first + micro_batch)
        for first in (
            consumed + (turn * world_size + rank) * micro_batch for turn in range(accumulation)
        )
    ]


def digest(positions: Sequence[int], ids: Sequence[int], consumed: int) -> int:
    """64-bit fingerprint of who saw what; the sum over ranks does not depend on their number."""
    pairs = zip(positions, ids, strict=True)
    return sum(mix(mix(p - consumed) ^ i) for p, i in pairs) & MASK


def as_int64(value: int) -> int:
    """The same 64 bits as a signed number, which is what a collective can add."""
    return value - (1 << 64) if value >> 63 else value


class Wanted(Protocol):
    """The options that say which data."""

    @property
    def dir(self) -> str:
        """Folder that prepare.py made, or that holds those of `blend`."""

    @property
    def blend(self) -> dict[Any, Any] | None:
        """{folder: weight}; None: one corpus, `dir` itself."""

    @property
    def cache(self) -> str | None:
        """Folder on the node's own disk to stream through; None: mapped where it lies."""

    @property
    def cache_gib(self) -> float:
        """Largest size of that folder."""


@dataclass(frozen=True)
class Samples:
    """Fixed-length samples of one corpus or of a blend, numbered: those to train on come first."""

    corpora: tuple[Corpus, ...]
    blend: Blend
    seq_len: int
    num_eval: int
    starts: tuple[int, ...]  # number of the first sample of each corpus, then of the evaluation

    @property
    def num_train(self) -> int:
        """Samples to train on, of all corpora."""
        return self.starts[-1]

    @property
    def vocab_size(self) -> int:
        """Token numbers are below it."""
        return int(self.corpora[0].facts["vocab_size"])

    @property
    def facts(self) -> dict[str, Any]:
        """What must be the same for the whole run, because the order of samples follows from it."""
        told = [corpus.facts["sha256"] for corpus in self.corpora]
        weights = {c.name: w for c, w in zip(self.corpora, self.blend.weights, strict=True)}
        return {
            "data.blend": weights if len(told) > 1 else None,
            "data.tokenizer": self.corpora[0].tokenizer,
            "data.tokens": told[0] if len(told) == 1 else _sha256("\n".join(told)),
        }

    def order(self, positions: Sequence[int], seed: int) -> list[int]:
        """Numbers of the samples at these positions of the endless stream."""
        places = [self.blend.place(position) for position in positions]
        return [
            self.starts[corpus] + sample_id(index, self.corpora[corpus].num_train, seed)
            for corpus, index in places
        ]

    def eval_ids(self, numbers: Sequence[int]) -> list[int]:
        """Numbers of held-out samples; behind the last one it begins again."""
        return [self.num_train + number % self.num_eval for number in numbers]

    def fetch(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """(len(ids), seq_len + 1) tokens: inputs are [:, :-1], targets [:, 1:]."""
        places = (self._place(number) for number in ids)
        return np.stack([tokens[part] for tokens, part in places]).astype(np.int64)

    def prefetch(self, passes: Sequence[Sequence[int]], seed: int) -> None:
        """Begin to fetch the samples at these positions, where data is streamed."""
        if not any(isinstance(corpus.tokens, Streamed) for corpus in self.corpora):
            return
        for positions in passes:
            for tokens, part in map(self._place, self.order(positions, seed)):
                tokens.prefetch(part)

    def _place(self, number: int) -> tuple[Any, slice]:
        """(file of tokens, part of it) of a sample."""
        if number < self.num_train:
            which = bisect_right(self.starts, number) - 1
            tokens, index = self.corpora[which].tokens, number - self.starts[which]
        else:
            which, index = self.blend.place(number - self.num_train)
            corpus = self.corpora[which]
            tokens = corpus.tokens if corpus.validation is None else corpus.validation
            index += corpus.num_train if corpus.validation is None else 0
        return tokens, slice(index * self.seq_len, (index + 1) * self.seq_len + 1)


def open_samples(wanted: Wanted, places: Sequence[Path], seq_len: int, num_eval: int) -> Samples:
    """Open what prepare.py made.

    Args:
        wanted: the options.
        places: where a relative folder is looked for, in this order.
        seq_len: tokens of a sample.
        num_eval: samples that are held out, of a blend in its proportions.

    Raises:
        Stop: missing or damaged (65), storage fails (74), too short or not made for each other,
            streamed without a cache (78).
    """
    if is_remote(wanted.dir) and wanted.cache is None:
        fix = "name a folder on the node's own disk"
        raise Stop(Stop.CONFIG, "data.cache", f"null, but {wanted.dir} is streamed", fix)
    cache = Cache(wanted.cache, wanted.cache_gib) if wanted.cache is not None else None
    weights = wanted.blend or {"": 1}
    blend = Blend(list(weights.values()))
    corpora = []
    for name, held in zip(weights, blend.counts(num_eval), strict=True):
        place = _find(wanted.dir, str(name), places)
        corpora.append(open_corpus(str(name), place, seq_len, held, cache))
    for corpus in corpora[1:]:
        one, other = (
            (c.facts["vocab_size"], c.facts["dtype"], c.tokenizer) for c in (corpora[0], corpus)
        )
        if one != other:
            what = f"{corpora[0].name} and {corpus.name} were prepared with different tokenizers"
            raise Stop(Stop.CONFIG, "data.blend", what, "prepare them with the same one")
    starts = [0]
    for corpus in corpora:
        starts.append(starts[-1] + corpus.num_train)
    return Samples(tuple(corpora), blend, seq_len, num_eval, tuple(starts))


def _find(folder: str, name: str, places: Sequence[Path]) -> str:
    """The URL, or the first of the folders that is there."""
    if is_remote(folder):
        return f"{folder.rstrip('/')}/{name}".rstrip("/")
    tried = [place / folder / name for place in places]
    return str(next((p for p in tried if (p / "meta.json").is_file()), tried[0]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
