"""tokens.idx, with which tokens.bin is a data set that Megatron's own readers open.

The layout is that of megatron/core/datasets/indexed_dataset.py: a header, the length of every
document, where each begins in the .bin, and the list of documents; little-endian throughout.
"""

import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
CODES = {"int32": 4, "uint16": 8}  # the types that prepare.py writes


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that holds every token number and that Megatron knows."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def write_index(path: Path, dtype: np.dtype[Any], lengths: "array[int]") -> None:
    """Write the index of a file of documents that follow each other without a gap.

    Args:
        path: the .idx file.
        dtype: of the tokens.
        lengths: tokens of each document, its end token included; 32-bit.
    """
    sizes: npt.NDArray[np.int32] = np.frombuffer(lengths, dtype=np.int32)
    ends = np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<QB", VERSION, CODES[dtype.name]))
        file.write(struct.pack("<QQ", len(sizes), len(sizes) + 1))
        file.write(sizes.astype("<i4").tobytes())
        file.write((ends - sizes.astype(np.int64) * dtype.itemsize).astype("<i8").tobytes())
        file.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())
