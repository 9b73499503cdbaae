"""Whole weights under their published names, out of a checkpoint of NeMo's, of any layout.

The library stacks the layers of the whole model into one tensor for each kind of weight, so all
weights are read at once: as much memory as they have bytes, and no GPU.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from config import Model
from hf_names import weights_of
from pieces import Shard, pieces

LAYERS = "decoder.layers."
WRAPPED = "module."  # NeMo's model has the library's inside


class WholeWeights:
    """The weights of one checkpoint."""

    def __init__(self, path: Path, shape: Model) -> None:
        """Read them."""
        reader = FileSystemReader(path / "weights")
        with warnings.catch_warnings():
            # One process; and the index names classes of the library, which are imported.
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            state: dict[str, Any] = {
                key: torch.empty(entry.size, dtype=entry.properties.dtype)
                for key, entry in reader.read_metadata().state_dict_metadata.items()
                if isinstance(entry, TensorStorageMetadata) and key.startswith(WRAPPED)
            }
            state_dict_loader.load(state, storage_reader=reader, no_dist=True)
        self._found = {name: torch.empty(size) for name, size in weights_of(shape).items()}
        for whole, tensor in state.items():
            key = whole.removeprefix(WRAPPED)
            if key.startswith(LAYERS):
                for layer, part in enumerate(tensor):
                    self._put(f"{LAYERS}{layer}.{key.removeprefix(LAYERS)}", part, shape)
            else:
                self._put(key, tensor, shape)

    def _put(self, name: str, tensor: Tensor, shape: Model) -> None:
        start = 0
        for piece in pieces(name, shape, Shard(0, 1)):
            rows = torch.from_numpy(np.asarray(piece.rows))
            self._found[piece.name][rows] = tensor[start : start + len(rows)].float()
            start += len(rows)

    def read(self, names: list[str]) -> dict[str, Tensor]:
        """Published names to whole weights."""
        return {name: self._found[name] for name in names}
