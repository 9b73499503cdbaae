"""Which rows and columns of which published weights a rank's parameter consists of.

Megatron-Core fuses and splits: query, key and value of a group of heads are rows of one matrix, the
two halves of SwiGLU another, and a rank holds rows or columns of them. Arithmetic alone: nothing of
the library is needed.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from config import Model

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Rows of a published weight, and of these the columns from `first` to `last` (None: all)."""

    name: str
    rows: Rows
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Shard:
    """This rank's place among those that share one weight."""

    rank: int
    size: int

    def part(self, whole: int) -> tuple[int, int]:
        """First and last + 1 of its equal part."""
        each = whole // self.size
        return self.rank * each, (self.rank + 1) * each

    def rows(self, whole: int) -> Rows:
        """Numbers of the rows of its part."""
        return np.arange(*self.part(whole))


def pieces(name: str, shape: Model, shard: Shard) -> list[Piece]:  # noqa: PLR0911  (a table)
    """What a parameter consists of, from first row to last.

    Args:
        name: as the library has it, with the number of the layer in the whole model.
        shape: of the model.
        shard: place among the tensor parallel ranks.

    Raises:
        KeyError: not a parameter of this model.
    """
    if not name.startswith("decoder.layers."):
        return _outside(name, shape, shard)
    _, _, layer, module = name.split(".", 3)
    module, _, kind = module.rpartition(".")
    prefix = f"layers.{layer}"
    norms = {
        ("input_layernorm", "weight"): "attention_norm.weight",
        ("input_layernorm", "bias"): "attention_norm.bias",
        ("self_attention.linear_qkv", "layer_norm_weight"): "attention_norm.weight",
        ("self_attention.linear_qkv", "layer_norm_bias"): "attention_norm.bias",
        ("pre_mlp_layernorm", "weight"): "ffn_norm.weight",
        ("pre_mlp_layernorm", "bias"): "ffn_norm.bias",
        ("mlp.linear_fc1", "layer_norm_weight"): "ffn_norm.weight",
        ("mlp.linear_fc1", "layer_norm_bias"): "ffn_norm.bias",
    }
    every = np.arange(shape.dim)
    if (module, kind) in norms:
        return [Piece(f"{prefix}.{norms[module, kind]}", every)]
    if module == "self_attention.linear_qkv":
        return _query_key_value(f"{prefix}.attention", kind, shape, shard)
    if module == "self_attention.linear_proj":
        columns = shard.part(shape.dim) if kind == "weight" else None
        return [Piece(f"{prefix}.attention.wo.{kind}", every, columns)]
    if module == "mlp.router":
        return [Piece(f"{prefix}.router.{kind}", np.arange(shape.num_experts))]
    where, _, linear = module.rpartition(".")
    feed_forward = f"{prefix}.feed_forward"
    if where.startswith("mlp.experts.local_experts."):
        feed_forward = f"{prefix}.experts.{where.rpartition('.')[2]}"
    elif where != "mlp":
        raise KeyError(name)
    if linear == "linear_fc1":
        names = ("w1", "w3") if shape.mlp == "swiglu" else ("w1",)
        return [Piece(f"{feed_forward}.{w}.{kind}", shard.rows(shape.ffn_dim)) for w in names]
    if linear == "linear_fc2":
        columns = shard.part(shape.ffn_dim) if kind == "weight" else None
        return [Piece(f"{feed_forward}.w2.{kind}", every, columns)]
    raise KeyError(name)


def _outside(name: str, shape: Model, shard: Shard) -> list[Piece]:
    """Of the parameters that belong to no layer."""
    vocabulary, every = shard.rows(shape.vocab_size), np.arange(shape.dim)
    return {
        "embedding.word_embeddings.weight": [Piece("tok_embeddings.weight", vocabulary)],
        "output_layer.weight": [Piece("output.weight", vocabulary)],
        "decoder.final_layernorm.weight": [Piece("norm.weight", every)],
        "decoder.final_layernorm.bias": [Piece("norm.bias", every)],
    }[name]


def _query_key_value(prefix: str, kind: str, shape: Model, shard: Shard) -> list[Piece]:
    """For each key and value head: the query heads that it serves, then itself.

    RoPE turns pairs of numbers. The published weights have the two of a pair side by side, the
    library has all first ones, then all second ones.
    """
    width = shape.head_dim
    paired = np.concatenate((np.arange(0, width, 2), np.arange(1, width, 2)))
    served = shape.num_heads // shape.num_kv_heads
    found = []
    for group in range(*shard.part(shape.num_kv_heads)):
        heads = [group * served + number for number in range(served)]
        query = np.concatenate([head * width + paired for head in heads])
        found += [
            Piece(f"{prefix}.wq.{kind}", query),
            Piece(f"{prefix}.wk.{kind}", group * width + paired),
            Piece(f"{prefix}.wv.{kind}", group * width + np.arange(width)),
        ]
    return found
