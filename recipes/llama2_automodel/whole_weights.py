"""Whole weights under their published names, out of shards that have Hugging Face's names."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.filesystem import FileSystemReader

from config import Model
from hf_names import hf_name, hf_rows, weights_of


class WholeWeights:
    """The weights of one checkpoint; read when asked for, so one file is in memory at a time."""

    def __init__(self, path: Path, shape: Model) -> None:
        self._path, self._sizes, self._shape = path, weights_of(shape), shape

    def read(self, names: list[str]) -> dict[str, Tensor]:
        """Published names to whole weights."""
        keys = {name: f"model.{hf_name(name)}" for name in names}
        state: dict[str, Any] = {keys[name]: torch.empty(self._sizes[name]) for name in names}
        reader = FileSystemReader(self._path)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="torch.distributed is"
            )  # not here: one process
            state_dict_loader.load(state, storage_reader=reader, no_dist=True)
        return {name: state[keys[name]][self._order(name)] for name in names}

    def _order(self, name: str) -> Tensor:
        """Where the shards have the published rows."""
        rows = np.arange(self._sizes[name][0])
        return torch.from_numpy(hf_rows(name, rows, self._shape.head_dim))
