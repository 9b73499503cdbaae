"""Llama 2 from NeMo AutoModel: a Hugging Face model, sharded by AutoModel with FSDP2.

The weights are those of recipes/llama2_fsdp under Hugging Face names: both start from the same
numbers. Where Llama's published files have the two numbers that RoPE turns side by side, Hugging
Face has all first ones, then all second ones: the rows of query and key stand in another order.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from nemo_automodel import NeMoAutoModelForCausalLM
from nemo_automodel.components.distributed.config import DistributedSetup, FSDP2Config
from nemo_automodel.components.distributed.mesh import ParallelismSizes
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard
from transformers import LlamaConfig

from config import Config, Model
from hf_names import hf_name, hf_rows, weights_of

INIT_STD = 0.02
INIT_ROWS = 64  # rows per random stream
Rows = npt.NDArray[np.int64]
Source = Callable[[str, Rows], npt.NDArray[np.float32]]  # (published name, rows) to whole rows


def describe(shape: Model) -> LlamaConfig:
    """The network as Hugging Face writes it down."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=shape.vocab_size,
        hidden_size=shape.dim,
        intermediate_size=shape.ffn_dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_seq_len,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        initializer_range=INIT_STD,
        tie_word_embeddings=False,
        attention_bias=False,
        use_cache=False,
    )


class Named(torch.nn.Module):
    """Tokens to logits; its weights have Hugging Face's names, however they are recomputed."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, length) to (samples, length, vocab_size)."""
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Without the names of what is wrapped around a layer."""
        for name, parameter in self.model.named_parameters():
            yield re.sub(r"(_checkpoint_wrapped_module|_orig_mod)\.", "", name), parameter


def build(config: Config, device: torch.device, world_size: int) -> Named:
    """A sharded model; AutoModel has given it weights, of its own drawing."""
    auto = config.train.precision == "auto" and device.type == "cuda"
    bf16 = torch.bfloat16 if auto or config.train.precision == "bf16" else torch.float32
    recompute: Any = False if config.train.recompute == "none" else config.train.recompute
    setup = DistributedSetup.build(
        strategy=FSDP2Config(
            # fp32 weights and reductions; what is computed with is cast on the way.
            mp_policy=MixedPrecisionPolicy(bf16, torch.float32, cast_forward_inputs=False),
            activation_checkpointing=recompute,
            enable_compile=config.train.compile,
        ),
        parallelism_sizes=ParallelismSizes(dp_replicate_size=config.parallel.replicate),
        activation_checkpointing=recompute,
        world_size=world_size,
        timeout_minutes=math.ceil(config.dist.timeout_s / 60),
    )
    model = NeMoAutoModelForCausalLM.from_config(
        describe(config.model),
        torch_dtype=torch.float32,
        attn_implementation="sdpa",
        force_hf=True,  # AutoModel's own Llama fuses query, key and value: other names, other sums
        use_liger_kernel=False,
        distributed_setup=setup,
    )
    return Named(model)


def published(shape: Model) -> dict[str, str]:
    """Hugging Face names to published names."""
    return {hf_name(name): name for name in weights_of(shape)}


def published_rows(name: str, num_rows: int, head_dim: int) -> Rows:
    """The published row of each row that Hugging Face has of this weight."""
    return np.argsort(hf_rows(name, np.arange(num_rows), head_dim))


@torch.no_grad()
def fill(model: Named, shape: Model, source: Source) -> None:
    """Set all weights; a rank asks for the rows that it owns, not for more.

    AutoModel has drawn its own, other ones on every rank: NaN first, so that one which nobody sets
    shows in the first loss.
    """
    for parameter in model.model.parameters():
        parameter.fill_(math.nan)
    names = published(shape)
    for name, parameter in model.named_parameters():
        first, local = _own_rows(parameter)
        rows = published_rows(names[name], parameter.shape[0], shape.head_dim)
        mine = rows[first : first + local.shape[0]]
        if len(mine):
            local.copy_(torch.from_numpy(source(names[name], mine)))


def drawn(shape: Model, seed: int) -> Source:
    """Initial values, the same for every world size, and for every recipe.

    Normal with deviation 0.02; what adds to the residual path is scaled by 1 / sqrt(2 x layers), as
    in GPT-2. Norms start at one. Each 64 rows of a published weight have a random stream of their
    own, so a rank draws the rows it owns. Drawn by numpy on the CPU.
    """
    residual = INIT_STD / math.sqrt(2 * shape.num_layers)
    sizes = weights_of(shape)

    def rows_of(name: str, rows: Rows) -> npt.NDArray[np.float32]:
        if len(sizes[name]) == 1:
            return np.ones(len(rows), np.float32)
        std = residual if name.endswith((".wo.weight", ".w2.weight")) else INIT_STD
        return _draw(f"{seed}/{name}", rows, sizes[name], std)

    return rows_of


def _own_rows(parameter: Tensor) -> tuple[int, Tensor]:
    """(number of the first row here, the rows here). FSDP2 shards dimension 0 as torch.chunk."""
    if not isinstance(parameter, DTensor):
        return 0, parameter
    mesh, local = parameter.device_mesh, parameter.to_local()
    for axis, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            per_rank = -(-parameter.shape[0] // mesh.size(axis))
            return min(mesh.get_local_rank(axis) * per_rank, parameter.shape[0]), local
    return 0, local


def _draw(stream: str, rows: Rows, whole: tuple[int, ...], std: float) -> npt.NDArray[np.float32]:
    """Rows of a published weight of shape `whole`."""
    found = np.empty((len(rows), *whole[1:]), np.float32)
    for first in np.unique(rows - rows % INIT_ROWS):
        last = min(first + INIT_ROWS, whole[0])
        key = hashlib.sha256(f"{stream}/{first}".encode()).digest()[:16]
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        drawn = generator.standard_normal((last - first, *whole[1:]), dtype=np.float32) * std
        inside = (rows >= first) & (rows < last)
        found[inside] = drawn[rows[inside] - first]
    return found


def published_hash(name: str, shape: Model, full: Tensor) -> tuple[str, str]:
    """(published name, SHA-256 of the whole weight as it is published)."""
    known = published(shape)[name]
    value = np.empty(tuple(full.shape), np.float32)
    value[published_rows(known, full.shape[0], shape.head_dim)] = full.float().cpu().numpy()
    return known, hashlib.sha256(value.tobytes()).hexdigest()


def count_parameters(shape: Model) -> int:
    """Number of weights, by arithmetic; a test compares it with the model itself."""
    kv_dim = shape.num_kv_heads * shape.head_dim
    attention = 2 * shape.dim * shape.dim + 2 * shape.dim * kv_dim
    block = attention + 3 * shape.dim * shape.ffn_dim + 2 * shape.dim
    return shape.num_layers * block + 2 * shape.vocab_size * shape.dim + shape.dim


def flops_per_token(shape: Model, seq_len: int) -> int:
    """Floating point operations of forward and backward for one token, without recomputation.

    6 for each weight of a matrix product (2 forward, 4 backward; looking up an embedding is none),
    and 12 x layers x dim x length for attention scores and values, the causal half counted whole,
    as is the custom (Chowdhery et al., "PaLM", 2022, appendix B).
    """
    norms = (2 * shape.num_layers + 1) * shape.dim
    matrices = count_parameters(shape) - shape.vocab_size * shape.dim - norms
    return 6 * matrices + 12 * shape.num_layers * shape.dim * seq_len
