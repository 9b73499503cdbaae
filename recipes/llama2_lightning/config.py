"""Options: config.yaml, then sizes/<model.size>.yaml, then `section.key=value` on the command line.

What depends on the size of the model stands in its size file and nowhere else. The dataclasses
below are the list of all options; config.yaml gives the reason for each value.
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
    norm_eps: float
    rope_theta: float

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.num_heads


@dataclass(frozen=True)
class Train:
    """What one training step is, and how many there are."""

    steps: int
    global_batch: int  # samples per training step over all ranks
    micro_batch: int  # samples per forward pass of one rank
    seq_len: int  # tokens per sample
    seed: int
    init: str | None  # folder with Hugging Face weights; null: drawn, as seed says
    precision: str  # auto | bf16 | fp32
    recompute: int | str  # none | full | n: every n-th block
    compile: bool
    cpu_threads: int


@dataclass(frozen=True)
class Optim:
    """How weights follow gradients; the rate warms up linearly and falls as a cosine."""

    kind: str  # adamw | radam | sgd
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
    """How ranks share the model: replicate groups of (world size / replicate) shards."""

    replicate: int


@dataclass(frozen=True)
class Checkpoint:
    """When and how to save."""

    every: int
    mode: str  # sync | thread | process


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
    checkpoint: Checkpoint
    eval: Eval
    dist: Dist
    log: Log

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dictionaries, as in the YAML files."""
        return asdict(self)


def load(folder: Path, words: list[str]) -> Config:
    """Merge the files of a recipe folder and `section.key=value` words.

    Raises:
        Stop: unknown or missing key, wrong type, impossible value (exit code 78).
    """
    config = read(Config, folder, words, ("sizes/{model.size}.yaml",))
    validate(config)
    return config


def validate(config: Config) -> None:
    """Refuse values that cannot work together, before anything is allocated."""
    model, train = config.model, config.train
    refuse_below_zero(config, ("optim", "eval", "train.seed"))
    if model.dim % model.num_heads or model.head_dim % 2:
        what = f"dim {model.dim} / num_heads {model.num_heads} is not an even number"
        raise bad("model", what, "RoPE turns pairs: make dim a multiple of 2 x num_heads")
    if model.num_heads % model.num_kv_heads:
        what = f"num_heads {model.num_heads} is not a multiple of num_kv_heads"
        raise bad("model", f"{what} {model.num_kv_heads}", "make it one")
    if train.seq_len > model.max_seq_len:
        what = f"{train.seq_len} is more than model.max_seq_len {model.max_seq_len}"
        raise bad("train.seq_len", what, "lower it")
    one_of("train.precision", train.precision, ("auto", "bf16", "fp32"))
    one_of("optim.kind", config.optim.kind, ("adamw", "radam", "sgd"))
    one_of("checkpoint.mode", config.checkpoint.mode, ("sync", "thread", "process"))
    if isinstance(train.recompute, str):
        one_of("train.recompute", train.recompute, ("none", "full"))
    if config.eval.every and not config.eval.samples:
        raise bad("eval.samples", "it is 0 but eval.every is not", "hold some samples out")


def accumulation(config: Config, world_size: int) -> int:
    """Forward passes of each rank in one training step: global batch / (micro batch x ranks).

    Raises:
        Stop: it does not divide; the line names the nearest values that do (exit code 78).
    """
    if world_size % config.parallel.replicate:
        what = f"{config.parallel.replicate} does not divide {world_size} ranks"
        raise bad("parallel.replicate", what, "use a divisor, 1 shards over all ranks")
    train = config.train
    unit = train.micro_batch * world_size
    if train.global_batch % unit:
        below, above = train.global_batch // unit * unit, -(-train.global_batch // unit) * unit
        near = " or ".join(str(value) for value in (below, above) if value)
        what = (
            f"{train.global_batch} is not a multiple of micro_batch {train.micro_batch} "
            f"x {world_size} ranks = {unit}"
        )
        raise bad("train.global_batch", what, f"nearest valid values are {near}")
    return train.global_batch // unit
