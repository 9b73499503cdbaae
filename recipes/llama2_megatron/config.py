"""Options: config.yaml, sizes/<model.size>.yaml, layouts/<size>.<machine>.yaml, then words.

What depends on the size of the model stands in its size file, what depends on size and machine in
the layout file. The dataclasses below are the list of all options; config.yaml gives the reason for
each value. layout.py says whether the layout fits the ranks.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from options import bad, one_of, read, refuse_below_zero


@dataclass(frozen=True)
class Model:
    """Shape of the network; num_kv_heads < num_heads is grouped-query attention."""

    size: str
    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_dim: int
    vocab_size: int
    max_seq_len: int
    norm: str  # rms | layer
    norm_eps: float
    rope_theta: float
    mlp: str  # swiglu | gelu
    bias: bool  # of all linear layers but the output
    num_experts: int  # 0: one feed-forward for all tokens
    experts_per_token: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.num_heads


@dataclass(frozen=True)
class Train:
    """What one training step is, and how many there are."""

    steps: int
    global_batch: int  # samples per training step over all ranks
    micro_batch: int  # samples per forward pass of one model
    seq_len: int  # tokens per sample
    seed: int
    init: str | None  # folder with Hugging Face weights; null: drawn, as seed says
    precision: str  # auto | bf16 | fp32
    dropout: float  # of attention weights and of what is added to the residual path
    recompute: str  # none | attention | full
    deterministic: bool
    cpu_threads: int


@dataclass(frozen=True)
class Optim:
    """AdamW, and a learning rate that warms up linearly and falls as a cosine."""

    kind: str  # adamw
    lr: float
    min_lr_ratio: float
    warmup_steps: int
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float


@dataclass(frozen=True)
class Data:
    """Where the prepared tokens are."""

    dir: str
    blend: dict[str, Any] | None  # folder in `dir`: weight; None: `dir` itself
    cache: str | None  # folder on the node's own disk to stream through; None: not streamed
    cache_gib: float


@dataclass(frozen=True)
class Parallel:
    """How ranks share a model; what is left of the world size is data parallel."""

    machine: str  # names the layout file
    tensor: int
    pipeline: int
    interleave: int  # pieces of the model on each pipeline rank
    context: int
    expert: int
    sequence: bool  # norms and dropout are split over the tensor parallel ranks too
    overlap: bool  # gradients and weights travel while others are computed


@dataclass(frozen=True)
class Machine:
    """The kind of node that the layout is for; null: not known, then not checked."""

    gpus: int | None
    memory_gb: int | None  # of one GPU, GB of 10^9 bytes as sold


@dataclass(frozen=True)
class Checkpoint:
    """When and how to save."""

    every: int
    mode: str  # async | sync
    format: str  # fully_reshardable | dp_reshardable


@dataclass(frozen=True)
class Eval:
    """Loss on samples that are never trained on."""

    every: int  # 0: never
    samples: int  # 0: hold nothing out


@dataclass(frozen=True)
class Dist:
    """Process groups."""

    backend: str  # auto | nccl | gloo | a name that the plug-in registers
    plugin: str | None  # module that registers a back end when it is imported
    timeout_s: int


@dataclass(frozen=True)
class Log:
    """What is written beside metrics.jsonl."""

    tensorboard: bool


@dataclass(frozen=True)
class Config:
    """All options of a run."""

    model: Model
    train: Train
    optim: Optim
    data: Data
    parallel: Parallel
    machine: Machine
    checkpoint: Checkpoint
    eval: Eval
    dist: Dist
    log: Log

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dictionaries, as in the YAML files."""
        return asdict(self)


FILES = ("sizes/{model.size}.yaml", "layouts/{model.size}.{parallel.machine}.yaml")
MAY_BE_ZERO = ("optim", "eval", "train.seed", "train.dropout")
EXPERTS = ("model.num_experts", "model.experts_per_token")


def load(folder: Path, words: list[str]) -> Config:
    """Merge the files of a recipe folder and `section.key=value` words.

    Raises:
        Stop: unknown or missing key, wrong type, impossible value (exit code 78).
    """
    config = read(Config, folder, words, FILES)
    validate(config)
    return config


def validate(config: Config) -> None:
    """Refuse values that cannot work together on any number of ranks."""
    model, train = config.model, config.train
    refuse_below_zero(config, (*MAY_BE_ZERO, *EXPERTS))
    if model.dim % model.num_heads or model.head_dim % 2:
        what = f"dim {model.dim} / num_heads {model.num_heads} is not an even number"
        raise bad("model", what, "RoPE turns pairs: make dim a multiple of 2 x num_heads")
    if model.num_heads % model.num_kv_heads:
        what = f"num_heads {model.num_heads} is not a multiple of num_kv_heads"
        raise bad("model", f"{what} {model.num_kv_heads}", "make it one")
    if train.seq_len > model.max_seq_len:
        what = f"{train.seq_len} is more than model.max_seq_len {model.max_seq_len}"
        raise bad("train.seq_len", what, "lower it")
    if (model.num_experts == 0) != (model.experts_per_token == 0):
        what = f"{model.experts_per_token} of {model.num_experts} experts"
        raise bad("model.experts_per_token", what, "set both, or both to 0")
    if model.experts_per_token > model.num_experts:
        what = f"{model.experts_per_token} of {model.num_experts} experts"
        raise bad("model.experts_per_token", what, "use at most model.num_experts")
    if model.num_experts and (model.bias or model.mlp != "swiglu"):
        raise bad("model.num_experts", "experts are swiglu without bias", "correct mlp or bias")
    one_of("model.norm", model.norm, ("rms", "layer"))
    one_of("model.mlp", model.mlp, ("swiglu", "gelu"))
    one_of("train.precision", train.precision, ("auto", "bf16", "fp32"))
    one_of("train.recompute", train.recompute, ("none", "attention", "full"))
    if config.optim.kind != "adamw":
        what = f"Megatron-Core's distributed optimizer knows no '{config.optim.kind}', only AdamW"
        raise bad("optim.kind", what, "use adamw, or the recipe llama2_fsdp, which has others")
    one_of("checkpoint.mode", config.checkpoint.mode, ("async", "sync"))
    formats = ("fully_reshardable", "dp_reshardable")
    one_of("checkpoint.format", config.checkpoint.format, formats)
    if config.eval.every and not config.eval.samples:
        raise bad("eval.samples", "it is 0 but eval.every is not", "hold some samples out")
