"""How much memory a layout needs on one GPU, and how much arithmetic: estimated, not measured.

What is counted: weights, gradients, AdamW's state, activations and logits. Attention counts as
fused (Transformer Engine): its scores are never kept. The formulas are those of Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", 2022, written for gated
feed-forwards and grouped-query attention. Standard library only: it runs before torch is imported.
"""

from dataclasses import dataclass

from config import Config, Model

USABLE = 0.9  # the rest is for the CUDA context, NCCL's buffers and fragmentation
GIB = 1 << 30


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU that needs most."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    gathered: float  # while a checkpoint of format fully_reshardable is staged

    @property
    def total(self) -> float:
        """At the worst moment: activations and gathered state are never there together."""
        fixed = self.weights + self.gradients + self.optimizer
        return fixed + max(self.activations + self.logits, self.gathered)


def estimate(config: Config, world_size: int) -> Memory:
    """The larger of what the first and the last pipeline rank need, in bytes."""
    parallel = config.parallel
    shards = world_size // (parallel.tensor * parallel.pipeline)  # data x context parallel
    half = config.train.precision != "fp32"
    per_weight, state = (2, 12) if half else (4, 8)
    attention, mlp = layer_parameters(config.model)
    experts = max(1, config.model.num_experts)
    layers = config.model.num_layers / parallel.pipeline
    shared = layers * (attention + (mlp if experts == 1 else 0)) / parallel.tensor
    routed = layers * (mlp if experts > 1 else 0) / (parallel.tensor * parallel.expert)
    table = config.model.vocab_size * config.model.dim / parallel.tensor
    shared += table * (2 if parallel.pipeline == 1 else 1)
    weights = shared + routed
    sharded = shared / shards + routed * parallel.expert / shards
    first, last = _activations(config, world_size)
    logits = _tokens(config) * config.model.vocab_size / parallel.tensor * 10  # fp32 twice, bf16
    if parallel.pipeline > 1 and first > last + logits:
        last, logits = first, 0
    gathered = 4 * weights if config.checkpoint.format == "fully_reshardable" else 0
    return Memory(weights * per_weight, weights * 4, sharded * state, last, logits, gathered)


def layer_parameters(model: Model) -> tuple[int, int]:
    """(attention, norms and router; feed-forward of all experts) of one layer."""
    kv_dim = model.num_kv_heads * model.head_dim
    attention = 2 * model.dim * model.dim + 2 * model.dim * kv_dim
    attention += 2 * model.dim * (2 if model.norm == "layer" else 1)
    attention += model.dim * model.num_experts
    mlp = (3 if model.mlp == "swiglu" else 2) * model.dim * model.ffn_dim
    if model.bias:
        attention += 2 * model.dim + 2 * kv_dim
        mlp += model.ffn_dim + model.dim
    return attention, mlp * max(1, model.num_experts)


def count_parameters(model: Model) -> int:
    """Number of weights, by arithmetic; a test compares it with the model itself."""
    norm = model.dim * (2 if model.norm == "layer" else 1)
    tables = 2 * model.vocab_size * model.dim
    return model.num_layers * sum(layer_parameters(model)) + norm + tables


def flops_per_token(model: Model, seq_len: int) -> int:
    """Floating point operations of forward and backward for one token, without recomputation.

    6 for each weight of a matrix product that the token meets (2 forward, 4 backward; looking up an
    embedding is none), and 12 x layers x dim x length for attention scores and values, the causal
    half counted whole, as is the custom (Chowdhery et al., "PaLM", 2022, appendix B).
    """
    kv_dim = model.num_kv_heads * model.head_dim
    matrices = (3 if model.mlp == "swiglu" else 2) * model.dim * model.ffn_dim
    matrices = matrices * max(1, model.experts_per_token) + model.dim * model.num_experts
    matrices += 2 * model.dim * model.dim + 2 * model.dim * kv_dim
    attention = 2 * model.dim * seq_len
    return 6 * (model.num_layers * (matrices + attention) + model.vocab_size * model.dim)


def in_flight(config: Config, world_size: int) -> float:
    """Forward passes whose activations the first pipeline rank holds at the worst moment.

    1F1B fills the pipeline: one for each rank behind it, at most as many as there are. Interleaving
    holds (pipeline - 1) / interleave more (Korthikanti et al., section 4.2.3).
    """
    parallel = config.parallel
    data = world_size // (parallel.tensor * parallel.pipeline * parallel.context)
    passes = config.train.global_batch // (config.train.micro_batch * data)
    most = float(parallel.pipeline)
    if parallel.interleave > 1:
        most += (parallel.pipeline - 1) / parallel.interleave
    return min(passes, most)


def _tokens(config: Config) -> float:
    """Tokens of one forward pass on one rank."""
    return config.train.micro_batch * config.train.seq_len / config.parallel.context


def _activations(config: Config, world_size: int) -> tuple[float, float]:
    """Bytes on the first and on the last pipeline rank."""
    model, parallel = config.model, config.parallel
    width = 1 if config.train.precision != "fp32" else 2  # of a number, in units of bf16
    spread = parallel.tensor if parallel.sequence else 1
    kv_dim = model.num_kv_heads * model.head_dim
    mlp = (6 if model.mlp == "swiglu" else 4) * model.ffn_dim * max(1, model.experts_per_token)
    mlp += 2 * model.dim * model.experts_per_token  # tokens as they were sent to their experts
    split = (4 * model.dim + 4 * kv_dim + mlp) / parallel.tensor  # q, k, v, attention's output
    whole = 8 * model.dim / spread  # inputs and outputs of two norms
    masks = 2 * model.dim / spread if config.train.dropout else 0
    layer = (split + whole) * width + masks
    layers = model.num_layers / parallel.pipeline
    if config.train.recompute == "full":
        kept, working = 2 * model.dim * width / spread, layer
    else:
        kept, working = layer, 0.0
    first = layers * kept * in_flight(config, world_size) + working
    last = layers * kept + working
    return first * _tokens(config), last * _tokens(config)
