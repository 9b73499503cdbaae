"""Samples by index: which tokens a training step sees follows from how many samples came before.

The order is a permutation computed from (seed, epoch, position), so there is no state to save but
the number of consumed samples, ranks are disjoint by construction, and the order does not depend on
the world size. The token file is memory-mapped: a sample costs one read of its own bytes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class Samples:
    """Fixed-length samples in a file of tokens; the last `held_out` are for evaluation."""

    tokens: npt.NDArray[Any]
    seq_len: int
    held_out: int
    vocab_size: int
    sha256: str

    @property
    def num_train(self) -> int:
        """Samples to train on."""
        return (len(self.tokens) - 1) // self.seq_len - self.held_out

    def fetch(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """(len(ids), seq_len + 1) tokens: inputs are [:, :-1], targets [:, 1:]."""
        length = self.seq_len
        rows = [self.tokens[i * length : (i + 1) * length + 1] for i in ids]
        return np.stack(rows).astype(np.int64)


def open_samples(folder: Path, seq_len: int, held_out: int) -> Samples:
    """Memory-map the folder that prepare.py made.

    Raises:
        Stop: missing or damaged (65), too short for these options (78).
    """
    meta_file, token_file = folder / "meta.json", folder / "tokens.bin"
    try:
        meta = json.loads(meta_file.read_text(encoding="utf-8"))
        dtype = np.dtype(meta["dtype"])
        num_tokens, vocab_size = int(meta["num_tokens"]), int(meta["vocab_size"])
        sha256 = str(meta["sha256"])
        num_bytes = token_file.stat().st_size
    except FileNotFoundError as error:
        raise Stop(Stop.DATA, f"data {error.filename}", "file not found", PREPARE) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(Stop.DATA, f"data {meta_file}", f"unreadable: {error!r}", PREPARE) from None
    if num_bytes != num_tokens * dtype.itemsize:
        what = f"{num_bytes} bytes instead of {num_tokens} x {dtype.itemsize}"
        raise Stop(Stop.DATA, f"data {token_file}", what, PREPARE)
    tokens = np.memmap(token_file, dtype=dtype, mode="r")
    samples = Samples(tokens, seq_len, held_out, vocab_size, sha256)
    if samples.num_train < 1:
        what = f"{num_tokens} tokens leave no sample of {seq_len} beside {held_out} held out"
        raise Stop(Stop.CONFIG, "train.seq_len", what, "shorten it, or prepare more text")
    return samples
