"""Every weight by its published name, whatever the layout: what it starts from, and its digest.

pieces.py says which rows and columns of which published weights a rank's parameter consists of;
everything else follows from it.
Initial values are those of recipes/llama2_fsdp: each 64 rows of a published weight have a random
stream of their own, so every layout, and every recipe, starts from the same numbers.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from config import Model
from model import bare
from pieces import Rows, Shard, pieces

INIT_STD = 0.02
INIT_ROWS = 64  # rows per random stream
Source = Callable[[str, Rows], npt.NDArray[np.float32]]  # (name, rows) to whole rows


def initial(shape: Model, seed: int) -> Source:
    """Normal with deviation 0.02; what adds to the residual path is scaled by 1 / sqrt(2 x layers),
    as in GPT-2. Norms start at one, biases at zero. Drawn by numpy on the CPU: every kind of GPU
    starts from the same values.
    """
    residual = INIT_STD / math.sqrt(2 * shape.num_layers)
    columns = {".w2.weight": shape.ffn_dim}

    def rows_of(name: str, rows: Rows) -> npt.NDArray[np.float32]:
        if name.endswith(".bias"):
            return np.zeros(len(rows), np.float32)
        if name.endswith("norm.weight"):
            return np.ones(len(rows), np.float32)
        width = columns.get(name[-len(".w2.weight") :], shape.dim)
        std = residual if name.endswith((".wo.weight", ".w2.weight")) else INIT_STD
        whole = _num_rows(name, shape)
        found = np.empty((len(rows), width), np.float32)
        for first in range(rows.min() - rows.min() % INIT_ROWS, rows.max() + 1, INIT_ROWS):
            inside = (rows >= first) & (rows < first + INIT_ROWS)
            if inside.any():
                key = hashlib.sha256(f"{seed}/{name}/{first}".encode()).digest()[:16]
                generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
                size = (min(INIT_ROWS, whole - first), width)
                drawn = generator.standard_normal(size, dtype=np.float32) * std
                found[inside] = drawn[rows[inside] - first]
        return found

    return rows_of


def _num_rows(name: str, shape: Model) -> int:
    """Rows of a published matrix."""
    kv_dim = shape.num_kv_heads * shape.head_dim
    last = name.split(".")[-2]
    rows = {"wk": kv_dim, "wv": kv_dim, "w1": shape.ffn_dim, "w3": shape.ffn_dim}
    rows |= {"tok_embeddings": shape.vocab_size, "output": shape.vocab_size}
    return rows.get(last, shape.num_experts if last == "router" else shape.dim)


@torch.no_grad()
def fill(models: list[Any], shape: Model, source: Source) -> None:
    """Set every parameter of this rank.

    Raises:
        KeyError: the model has a parameter that has no published name.
    """
    for name, parameter, shard in parameters(models, shape):
        parts = [
            source(piece.name, piece.rows)[..., slice(*(piece.columns or (None,)))]
            for piece in pieces(name, shape, shard)
        ]
        parameter.copy_(torch.from_numpy(np.concatenate(parts)))


def parameters(models: list[Any], shape: Model) -> Iterator[tuple[str, Tensor, Shard]]:
    """(name with the layer's number in the whole model, parameter, place) of this rank."""
    tensor = Shard(
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    first_expert, _ = Shard(
        parallel_state.get_expert_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_world_size(),
    ).part(shape.num_experts)
    for model in models:
        layers = bare(model).decoder.layers
        for name, parameter in bare(model).named_parameters():
            words = name.split(".")
            if words[:2] == ["decoder", "layers"]:
                words[2] = str(layers[int(words[2])].layer_number - 1)
            if "local_experts" in words:
                number = words.index("local_experts") + 1
                words[number] = str(first_expert + int(words[number]))
            yield ".".join(words), parameter, tensor


@torch.no_grad()
def digest(models: list[Any], shape: Model, beat: Callable[[], None]) -> str:
    """SHA-256 over all weights under their published names, whatever the layout.

    Parameters are gathered one at a time within a tensor parallel group, and hashed by its first
    rank; of the data parallel copies one is asked.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    mine: dict[str, str] = {}
    for name, parameter, shard in parameters(models, shape):
        beat()
        is_expert = "local_experts" in name
        copy = (
            parallel_state.get_expert_data_parallel_rank()
            if is_expert
            else parallel_state.get_data_parallel_rank(with_context_parallel=True)
        )
        if copy != 0:
            continue
        local = parameter.detach().float().contiguous()
        parts = [torch.empty_like(local) for _ in range(shard.size)]
        dist.all_gather(parts, local, group=group)
        if shard.rank == 0:
            mine |= _hashes(name, shape, [part.cpu().numpy() for part in parts])
    found: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    lines = sorted(f"{name} {value}" for part in found for name, value in part.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _hashes(name: str, shape: Model, parts: list[npt.NDArray[Any]]) -> dict[str, str]:
    """Published names to hashes of the whole weights that one parameter's shards make up."""
    whole: dict[str, npt.NDArray[np.float32]] = {}
    for rank, part in enumerate(parts):
        start = 0
        for piece in pieces(name, shape, Shard(rank, len(parts))):
            rows = part[start : start + len(piece.rows)]
            start += len(piece.rows)
            if piece.name not in whole:
                width = rows.shape[1:]
                if piece.columns is not None:
                    width = (width[0] * len(parts),)
                whole[piece.name] = np.empty((_rows(piece.name, shape), *width), np.float32)
            if piece.columns is None:
                whole[piece.name][piece.rows] = rows
            else:
                whole[piece.name][piece.rows, slice(*piece.columns)] = rows
    return {key: hashlib.sha256(value.tobytes()).hexdigest() for key, value in whole.items()}


def _rows(name: str, shape: Model) -> int:
    """Rows of a published weight, vectors included."""
    return shape.dim if "norm" in name.split(".")[-2] else _num_rows(name, shape)
