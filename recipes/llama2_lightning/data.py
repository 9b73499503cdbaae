"""Samples by index: which tokens a training step sees follows from how many samples came before.

The order is a permutation computed from (seed, epoch, position), so there is no state to save but
the number of consumed samples, ranks are disjoint by construction, and the order does not depend on
the world size. A sample costs one read of its own bytes, from a file that is mapped into memory.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from blend import Blend
from errors import Stop

MASK = (1 << 64) - 1
ROUNDS = 6
PREPARE = "run 'python prepare.py' in the recipe's folder"


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


@dataclass(frozen=True)
class Corpus:
    """One file of tokens, and what is kept apart for evaluation."""

    name: str
    tokens: Any  # one-dimensional, sliced like an array
    validation: Any | None  # a file of its own; None: the last samples of `tokens`
    num_train: int  # samples
    facts: dict[str, Any]  # of meta.json


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
            "data.tokenizer": _tokenizer(self.corpora[0]),
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
        return np.stack([self._row(number) for number in ids]).astype(np.int64)

    def _row(self, number: int) -> Any:
        if number < self.num_train:
            which = bisect_right(self.starts, number) - 1
            tokens, index = self.corpora[which].tokens, number - self.starts[which]
        else:
            which, index = self.blend.place(number - self.num_train)
            corpus = self.corpora[which]
            tokens = corpus.tokens if corpus.validation is None else corpus.validation
            index += corpus.num_train if corpus.validation is None else 0
        return tokens[index * self.seq_len : (index + 1) * self.seq_len + 1]


def open_samples(wanted: Wanted, places: Sequence[Path], seq_len: int, num_eval: int) -> Samples:
    """Open what prepare.py made.

    Args:
        wanted: the options.
        places: where a relative folder is looked for, in this order.
        seq_len: tokens of a sample.
        num_eval: samples that are held out, of a blend in its proportions.

    Raises:
        Stop: missing or damaged (65), too short or not made for each other (78).
    """
    weights = wanted.blend or {"": 1}
    blend = Blend(list(weights.values()))
    corpora = []
    for name, held in zip(weights, blend.counts(num_eval), strict=True):
        tried = [place / wanted.dir / str(name) for place in places]
        folder = next((p for p in tried if (p / "meta.json").is_file()), tried[0])
        corpora.append(open_corpus(str(name), folder, seq_len, held))
    for corpus in corpora[1:]:
        one, other = (
            (c.facts["vocab_size"], c.facts["dtype"], _tokenizer(c)) for c in (corpora[0], corpus)
        )
        if one != other:
            what = f"{corpora[0].name} and {corpus.name} were prepared with different tokenizers"
            raise Stop(Stop.CONFIG, "data.blend", what, "prepare them with the same one")
    starts = [0]
    for corpus in corpora:
        starts.append(starts[-1] + corpus.num_train)
    return Samples(tuple(corpora), blend, seq_len, num_eval, tuple(starts))


def open_corpus(name: str, folder: Path, seq_len: int, held: int) -> Corpus:
    """Open one corpus, of which so many samples are held out.

    Raises:
        Stop: missing or damaged (65), too short (78).
    """
    facts = read_meta(folder)
    tokens = open_tokens(folder / "tokens.bin", facts, int(facts["num_tokens"]))
    apart = facts.get("validation")
    validation, num_train = None, (len(tokens) - 1) // seq_len - (0 if apart else held)
    if apart and held:
        validation = open_tokens(folder / "validation.bin", facts, int(apart["num_tokens"]))
        if (len(validation) - 1) // seq_len < held:
            what = f"{held} samples of {seq_len} tokens are more than validation.bin has"
            fix = "lower it, or prepare with a larger --validation"
            raise Stop(Stop.CONFIG, f"eval.samples: {folder}", what, fix)
    if num_train < 1:
        what = f"{len(tokens)} tokens leave no sample of {seq_len} beside {held} held out"
        raise Stop(Stop.CONFIG, "train.seq_len", what, "shorten it, or prepare more text")
    return Corpus(name, tokens, validation, num_train, facts)


def read_meta(folder: Path) -> dict[str, Any]:
    """What prepare.py says about its files.

    Raises:
        Stop: missing or damaged (65).
    """
    path = folder / "meta.json"
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        np.dtype(meta["dtype"])
        numbers = (int(meta["num_tokens"]), int(meta["vocab_size"]))
        return {**meta, "sha256": str(meta["sha256"]), "num_tokens": numbers[0]}
    except FileNotFoundError as error:
        raise Stop(Stop.DATA, f"data {error.filename}", "file not found", PREPARE) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(Stop.DATA, f"data {path}", f"unreadable: {error!r}", PREPARE) from None


def open_tokens(path: Path, facts: dict[str, Any], num_tokens: int) -> npt.NDArray[Any]:
    """Map a file of tokens into memory.

    Raises:
        Stop: missing, or not as long as it should be (65).
    """
    dtype = np.dtype(facts["dtype"])
    try:
        num_bytes = path.stat().st_size
    except OSError as error:
        raise Stop(Stop.DATA, f"data {path}", f"{error.strerror}", PREPARE) from None
    if num_bytes != num_tokens * dtype.itemsize:
        what = f"{num_bytes} bytes instead of {num_tokens} x {dtype.itemsize}"
        raise Stop(Stop.DATA, f"data {path}", what, PREPARE)
    return np.memmap(path, dtype=dtype, mode="r")


def _tokenizer(corpus: Corpus) -> str | None:
    told = corpus.facts.get("tokenizer_sha256")
    return f"{corpus.facts.get('tokenizer')} {told[:12]}" if told else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
