"""Options: config.yaml, then sizes/<model.size>.yaml, then `section.key=value` on the command line.

What depends on the size of the model stands in its size file and nowhere else: a key that stands in
both files is an error, so there is no silent precedence to remember. The dataclasses below are the
list of all options; config.yaml gives the reason for each value.
"""

import difflib
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from errors import Stop


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
    precision: str  # auto | bf16 | fp32
    recompute: int | str  # none | full | n: every n-th block
    compile: bool
    cpu_threads: int


@dataclass(frozen=True)
class Optim:
    """AdamW, and a learning rate that warms up linearly and falls as a cosine."""

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


@dataclass(frozen=True)
class Parallel:
    """How ranks share the model: replicate groups of (world size / replicate) shards."""

    replicate: int


@dataclass(frozen=True)
class Checkpoint:
    """When and how to save."""

    every: int
    keep: int
    mode: str  # sync | thread | process


@dataclass(frozen=True)
class Eval:
    """Loss on samples that are never trained on."""

    every: int  # 0: never
    samples: int  # 0: hold nothing out


@dataclass(frozen=True)
class Dist:
    """Process groups."""

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


def load(folder: Path, overrides: list[str]) -> Config:
    """Merge the files of a recipe folder and `section.key=value` words.

    Raises:
        Stop: unknown or missing key, wrong type, impossible value (exit code 78).
    """
    words = dict(_split(word) for word in overrides)
    base = _read(folder / "config.yaml")
    size = words.get(("model", "size"), base.get(("model", "size")))
    if size is None:
        raise _bad("config.yaml", "model.size is missing", f"one of {_sizes(folder)}")
    size_file = folder / "sizes" / f"{size}.yaml"
    if not size_file.is_file():
        raise _bad("model.size", f"there is no sizes/{size}.yaml", f"use one of {_sizes(folder)}")
    sized = _read(size_file)
    for section, key in sorted(base.keys() & sized.keys()):
        raise _bad(
            f"config.yaml: {section}.{key}",
            f"it stands in sizes/{size}.yaml too",
            "keep one of the two; to try another value, give it on the command line",
        )
    config = _build({**base, **sized, **words})
    validate(config)
    return config


def validate(config: Config) -> None:
    """Refuse values that cannot work together, before anything is allocated."""
    model, train = config.model, config.train
    for section in ("model", "train", "optim", "checkpoint", "parallel", "dist"):
        for field in fields(getattr(config, section)):
            value = getattr(getattr(config, section), field.name)
            may_be_zero = section == "optim" or field.name == "seed"
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and (value < 0 or (value == 0 and not may_be_zero)):
                raise _bad(f"{section}.{field.name}", f"{value} is too small", "make it positive")
    if model.dim % model.num_heads or model.head_dim % 2:
        what = f"dim {model.dim} / num_heads {model.num_heads} is not an even number"
        raise _bad("model", what, "RoPE turns pairs: make dim a multiple of 2 x num_heads")
    if model.num_heads % model.num_kv_heads:
        what = f"num_heads {model.num_heads} is not a multiple of num_kv_heads"
        raise _bad("model", f"{what} {model.num_kv_heads}", "make it one")
    if train.seq_len > model.max_seq_len:
        what = f"{train.seq_len} is more than model.max_seq_len {model.max_seq_len}"
        raise _bad("train.seq_len", what, "lower it")
    _one_of("train.precision", train.precision, ("auto", "bf16", "fp32"))
    _one_of("checkpoint.mode", config.checkpoint.mode, ("sync", "thread", "process"))
    if isinstance(train.recompute, str):
        _one_of("train.recompute", train.recompute, ("none", "full"))
    if config.eval.every and not config.eval.samples:
        raise _bad("eval.samples", "it is 0 but eval.every is not", "hold some samples out")


def accumulation(config: Config, world_size: int) -> int:
    """Forward passes of each rank in one training step: global batch / (micro batch x ranks).

    Raises:
        Stop: it does not divide; the line names the nearest values that do (exit code 78).
    """
    if world_size % config.parallel.replicate:
        what = f"{config.parallel.replicate} does not divide {world_size} ranks"
        raise _bad("parallel.replicate", what, "use a divisor, 1 shards over all ranks")
    train = config.train
    unit = train.micro_batch * world_size
    if train.global_batch % unit:
        below, above = train.global_batch // unit * unit, -(-train.global_batch // unit) * unit
        near = " or ".join(str(value) for value in (below, above) if value)
        what = (
            f"{train.global_batch} is not a multiple of micro_batch {train.micro_batch} "
            f"x {world_size} ranks = {unit}"
        )
        raise _bad("train.global_batch", what, f"nearest valid values are {near}")
    return train.global_batch // unit


Keys = dict[tuple[str, str], Any]


def _split(word: str) -> tuple[tuple[str, str], Any]:
    name, equals, text = word.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot and key):
        raise _bad(f"argument '{word}'", "not of the form section.key=value", "e.g. train.steps=20")
    try:
        return (section, key), yaml.safe_load(text)
    except yaml.YAMLError:
        raise _bad(f"argument '{word}'", "the value is not YAML", "quote it") from None


def _read(path: Path) -> Keys:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _bad(path.name, f"cannot be read: {error}", "repair the file") from None
    if not isinstance(tree, dict) or not all(isinstance(v or {}, dict) for v in tree.values()):
        raise _bad(path.name, "expected sections with keys", "see the comments in config.yaml")
    return {(str(s), str(k)): v for s, keys in tree.items() for k, v in (keys or {}).items()}


def _sizes(folder: Path) -> str:
    return ", ".join(sorted(path.stem for path in (folder / "sizes").glob("*.yaml")))


def _build(values: Keys) -> Config:
    left = dict(values)
    sections: dict[str, Any] = {}
    known = {
        (section.name, field.name): field.type
        for section in fields(Config)
        if isinstance(section.type, type) and is_dataclass(section.type)
        for field in fields(section.type)
    }
    for section, key in left:
        if (section, key) not in known:
            names = [f"{s}.{k}" for s, k in known]
            near = difflib.get_close_matches(f"{section}.{key}", names, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else "config.yaml lists the options"
            raise _bad(f"{section}.{key}", "unknown option", hint)
    for section_field in fields(Config):
        cls, name = section_field.type, section_field.name
        arguments = {}
        for field in fields(cls):  # type: ignore[arg-type]
            if (name, field.name) not in left:
                where, fix = f"{name}.{field.name}", "add it to config.yaml or the size file"
                raise _bad(where, "missing", fix)
            where, value = f"{name}.{field.name}", left[name, field.name]
            arguments[field.name] = _typed(where, value, field.type)
        sections[name] = cls(**arguments)  # type: ignore[operator]
    return Config(**sections)


def _typed(where: str, value: Any, wanted: Any) -> Any:
    if wanted is float and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-5 (no dot) as a string
        except (TypeError, ValueError):
            pass
    allowed = get_args(wanted) or (wanted,)
    if type(value) in allowed:
        return value
    names = " or ".join(t.__name__ for t in allowed)
    raise _bad(where, f"{value!r} is not of type {names}", "correct the value")


def _one_of(where: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _bad(where, f"'{value}' is not known", f"use one of {', '.join(allowed)}")


def _bad(where: str, what: str, fix: str) -> Stop:
    return Stop(Stop.CONFIG, where, what, fix)
