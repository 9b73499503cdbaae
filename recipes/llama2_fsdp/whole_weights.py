"""Whole weights under their published names, out of the shards of all ranks, in any process."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.filesystem import FileSystemReader

from config import Model
from hf_names import weights_of


class WholeWeights:
    """The weights of one checkpoint; read when asked for, so one file is in memory at a time."""

    def __init__(self, path: Path, shape: Model) -> None:
        self._path, self._sizes = path, weights_of(shape)

    def read(self, names: list[str]) -> dict[str, Tensor]:
        """Published names to whole weights."""
        state: dict[str, Any] = {f"model.{name}": torch.empty(self._sizes[name]) for name in names}
        reader = FileSystemReader(self._path)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="torch.distributed is"
            )  # not here: one process
            state_dict_loader.load(state, storage_reader=reader, no_dist=True)
        return {name: state[f"model.{name}"] for name in names}
