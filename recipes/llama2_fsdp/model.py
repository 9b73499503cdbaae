"""Llama 2, written out: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Nothing is imported from a model library, so that what is trained is what you read. Names of the
parameters are those of the published checkpoints (tok_embeddings, layers.0.attention.wq, ...).
Source of the architecture: Touvron et al., "Llama 2", 2023.
"""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F  # noqa: N812  (everybody calls it F)

from config import Model

Source = Callable[[str, npt.NDArray[np.int64]], npt.NDArray[np.float32]]  # name, rows to rows

INIT_STD = 0.02
INIT_ROWS = 64  # rows per random stream: a rank draws its own rows, rarely more


class RMSNorm(nn.Module):
    """x / rms(x) * weight; the statistics in fp32 whatever the precision of x."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.type_as(x) * self.weight


def rope_table(head_dim: int, length: int, theta: float, device: torch.device) -> Tensor:
    """(2, length, head_dim / 2): cosine and sine of position x frequency, fp32."""
    pairs = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32)
    angles = torch.outer(
        torch.arange(length, device=device, dtype=torch.float32), theta ** (-pairs / head_dim)
    )
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Turn neighbouring pairs of x (batch, heads, length, head_dim) by their position's angle."""
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = rope[0], rope[1]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).type_as(x)


class Attention(nn.Module):
    """Causal attention; each key and value head serves num_heads / num_kv_heads query heads."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.grouped = shape.num_kv_heads != shape.num_heads
        kv_dim = shape.num_kv_heads * shape.head_dim
        self.wq = nn.Linear(shape.dim, shape.dim, bias=False)
        self.wk = nn.Linear(shape.dim, kv_dim, bias=False)
        self.wv = nn.Linear(shape.dim, kv_dim, bias=False)
        self.wo = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """(batch, length, dim) to the same shape."""
        q, k, v = (
            w(x).view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(
            rotate(q, rope), rotate(k, rope), v, is_causal=True, enable_gqa=self.grouped
        )
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x)."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.w2 = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, dim) to the same shape."""
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual path."""

    def __init__(self, shape: Model, *, recompute: bool) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.feed_forward = FeedForward(shape)
        self.attention_norm = RMSNorm(shape.dim, shape.norm_eps)
        self.ffn_norm = RMSNorm(shape.dim, shape.norm_eps)
        self.recompute = recompute

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """(batch, length, dim) to the same shape; with recompute only x is kept for backward."""
        if self.recompute and torch.is_grad_enabled():
            # Inside the block, so that FSDP gathers its weights once for recompute and backward.
            from torch.utils.checkpoint import checkpoint  # noqa: PLC0415  (only when used)

            again: Tensor = checkpoint(
                self.run, x, rope, use_reentrant=False, preserve_rng_state=False
            )
            return again
        return self.run(x, rope)

    def run(self, x: Tensor, rope: Tensor) -> Tensor:
        """What forward computes."""
        x = x + self.attention(self.attention_norm(x), rope)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Llama(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocab_size)."""

    rope: Tensor

    def __init__(self, shape: Model, seq_len: int, recompute: int | str = "none") -> None:
        super().__init__()
        every = 1 if recompute == "full" else recompute  # n: blocks 0, n, 2n, ...
        self.shape, self.seq_len = shape, seq_len
        self.tok_embeddings = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(
            Block(shape, recompute=isinstance(every, int) and i % every == 0)
            for i in range(shape.num_layers)
        )
        self.norm = RMSNorm(shape.dim, shape.norm_eps)
        self.output = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        table = torch.empty(2, seq_len, shape.head_dim // 2)
        self.register_buffer("rope", table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits in the precision of the weights."""
        x = self.tok_embeddings(tokens)
        rope = self.rope[:, : tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, rope)
        logits: Tensor = self.output(self.norm(x))
        return logits

    def reset_buffers(self) -> None:
        """Fill what no checkpoint holds. `to_empty` leaves buffers uninitialised."""
        shape = self.shape
        table = rope_table(shape.head_dim, self.seq_len, shape.rope_theta, self.rope.device)
        self.rope.copy_(table)


@torch.no_grad()
def init_weights(model: Llama, seed: int) -> None:
    """Draw all weights, the same values for every world size and way of sharding.

    Each 64 rows of a parameter have their own random stream, named by seed, parameter and row, so a
    rank draws the rows it owns and never holds a whole parameter. Normal with deviation 0.02; what
    adds to the residual path is scaled by 1 / sqrt(2 x layers), as in GPT-2. Norms start at one.
    Drawn by numpy on the CPU: every kind of GPU starts from the same values.
    """
    residual = INIT_STD / math.sqrt(2 * model.shape.num_layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        start, local = _own_rows(parameter)
        std = residual if name.endswith((".wo.weight", ".w2.weight")) else INIT_STD
        _draw_rows(local, start, parameter.shape[0], f"{seed}/{name}", std)


@torch.no_grad()
def copy_weights(model: Llama, source: Source) -> None:
    """Set all weights from somewhere else; a rank asks for the rows that it owns, not for more."""
    for name, parameter in model.named_parameters():
        start, local = _own_rows(parameter)
        if len(local):
            local.copy_(torch.from_numpy(source(name, np.arange(start, start + len(local)))))


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


def _draw_rows(local: Tensor, start: int, num_rows: int, stream: str, std: float) -> None:
    stop = start + local.shape[0]
    for first in range(start - start % INIT_ROWS, stop, INIT_ROWS):
        last = min(first + INIT_ROWS, num_rows)
        key = hashlib.sha256(f"{stream}/{first}".encode()).digest()[:16]
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        rows = generator.standard_normal((last - first, *local.shape[1:]), dtype=np.float32) * std
        low, high = max(first, start), min(last, stop)
        local[low - start : high - start].copy_(torch.from_numpy(rows[low - first : high - first]))


def count_parameters(shape: Model) -> int:
    """Number of weights, by arithmetic; a test compares it with the model itself."""
    kv_dim = shape.num_kv_heads * shape.head_dim
    attention = 2 * shape.dim * shape.dim + 2 * shape.dim * kv_dim
    block = attention + 3 * shape.dim * shape.ffn_dim + 2 * shape.dim
    return shape.num_layers * block + shape.dim + 2 * shape.vocab_size * shape.dim


def flops_per_token(shape: Model, seq_len: int) -> int:
    """Floating point operations of forward and backward for one token, without recomputation.

    6 for each weight of a matrix product (2 forward, 4 backward; looking up an embedding is none),
    and 12 x layers x dim x length for attention scores and values. The causal half is counted
    whole, as is the custom (Chowdhery et al., "PaLM", 2022, appendix B): figures can be compared.
    """
    norms = (2 * shape.num_layers + 1) * shape.dim
    matrices = count_parameters(shape) - shape.vocab_size * shape.dim - norms
    return 6 * matrices + 12 * shape.num_layers * shape.dim * seq_len
