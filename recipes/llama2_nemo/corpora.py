"""What prepare.py made, opened: on a disk, mapped into memory; or streamed through a cache.

A place is a folder, or s3://bucket/prefix. meta.json says what else is there.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from errors import Stop
from stream import Cache, FileSource, S3Source, Source, Streamed

PREPARE = "run 'python prepare.py' in the recipe's folder"


@dataclass(frozen=True)
class Corpus:
    """One file of tokens, and what is kept apart for evaluation."""

    name: str
    tokens: Any  # one-dimensional, sliced like an array
    validation: Any | None  # a file of its own; None: the last samples of `tokens`
    num_train: int  # samples
    facts: dict[str, Any]  # of meta.json

    @property
    def tokenizer(self) -> str | None:
        """Its name and the beginning of its digest; None: prepared by something else."""
        told = self.facts.get("tokenizer_sha256")
        return f"{self.facts.get('tokenizer')} {told[:12]}" if told else None


def is_remote(place: str) -> bool:
    """Whether a place is in S3."""
    return place.startswith("s3://")


def open_corpus(name: str, place: str, seq_len: int, held: int, cache: Cache | None) -> Corpus:
    """Open one corpus, of which so many samples are held out.

    Raises:
        Stop: missing or damaged (65), storage fails (74), too short (78).
    """
    facts = read_meta(place)
    tokens = open_tokens(f"{place}/tokens.bin", facts, facts, cache)
    apart = facts.get("validation")
    validation, num_train = None, (len(tokens) - 1) // seq_len - (0 if apart else held)
    if apart and held:
        validation = open_tokens(f"{place}/validation.bin", facts, apart, cache)
        if (len(validation) - 1) // seq_len < held:
            what = f"{held} samples of {seq_len} tokens are more than validation.bin has"
            fix = "lower it, or prepare with a larger --validation"
            raise Stop(Stop.CONFIG, f"eval.samples: {place}", what, fix)
    if num_train < 1:
        what = f"{len(tokens)} tokens leave no sample of {seq_len} beside {held} held out"
        raise Stop(Stop.CONFIG, "train.seq_len", what, "shorten it, or prepare more text")
    return Corpus(name, tokens, validation, num_train, facts)


def read_meta(place: str) -> dict[str, Any]:
    """What prepare.py says about its files.

    Raises:
        Stop: missing or damaged (65), storage fails (74).
    """
    path = f"{place}/meta.json"
    try:
        if is_remote(place):
            source = S3Source(path)
            text = source.read(0, source.size()).decode()
        else:
            text = Path(path).read_text(encoding="utf-8")
        meta: dict[str, Any] = json.loads(text)
        np.dtype(meta["dtype"])
        numbers = (int(meta["num_tokens"]), int(meta["vocab_size"]))
        return {**meta, "sha256": str(meta["sha256"]), "num_tokens": numbers[0]}
    except FileNotFoundError:
        raise Stop(Stop.DATA, f"data {path}", "file not found", PREPARE) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(Stop.DATA, f"data {path}", f"unreadable: {error!r}", PREPARE) from None


def open_tokens(
    path: str, facts: dict[str, Any], split: dict[str, Any], cache: Cache | None
) -> Any:
    """Map a file of tokens into memory, or make ready to stream it.

    Args:
        path: of the file, or its URL.
        facts: meta.json.
        split: number and digest of the tokens of this file.
        cache: to stream through; None: map it.

    Raises:
        Stop: missing, or not as long as it should be (65); storage fails (74).
    """
    dtype, num_tokens = np.dtype(facts["dtype"]), int(split["num_tokens"])
    source: Source | None = None
    try:
        if cache is not None:
            source = S3Source(path) if is_remote(path) else FileSource(Path(path))
        num_bytes = source.size() if source is not None else os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise Stop(Stop.DATA, f"data {path}", f"{error.strerror}", PREPARE) from None
    if num_bytes != num_tokens * dtype.itemsize:
        what = f"{num_bytes} bytes instead of {num_tokens} x {dtype.itemsize}"
        raise Stop(Stop.DATA, f"data {path}", what, PREPARE)
    if source is None or cache is None:
        return np.memmap(path, dtype=dtype, mode="r")
    return Streamed(source, dtype, str(split["sha256"]), cache)
