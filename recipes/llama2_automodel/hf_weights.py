"""Weights in and out of a folder in Hugging Face's format: config.json and safetensors.

Everything is compared with the model before a tensor is read, so what does not fit ends with one
line before training starts. hf_names.py says what is called what.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from config import Model
from errors import Stop
from hf_names import Rows, hf_config, hf_name, hf_rows, weights_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5 << 30  # of a file that is written; what is in memory at once
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Weights:
    """A folder that `open_weights` has looked through."""

    shape: Model
    files: dict[str, Path]  # Hugging Face's name to the file that has it
    tied: bool  # the output layer is the embedding

    def rows(self, name: str, rows: Rows) -> npt.NDArray[np.float32]:
        """Whole rows of a published weight, whatever precision the file has.

        Reads from the first to the last of them, so a rank reads little more than what it holds.
        """
        wanted = hf_name("tok_embeddings" if self.tied and name == "output.weight" else name)
        theirs = hf_rows(name, rows, self.shape.head_dim)
        first, last = int(theirs.min()), int(theirs.max()) + 1
        with _open(self.files[wanted]) as file:
            part: Tensor = file.get_slice(wanted)[first:last]
        return part.float().numpy()[theirs - first]


def open_weights(folder: Path, shape: Model) -> Weights:
    """Compare config.json and every tensor's name and shape with the model; reads no tensor.

    Raises:
        Stop: something is missing or damaged (65), or of another shape (78); no safetensors (69).
    """
    config = _read_json(folder / "config.json")
    _compare_config(folder / "config.json", config, shape)
    files = _files(folder)
    tied = bool(config.get("tie_word_embeddings", False))
    wanted = {hf_name(name): size for name, size in weights_of(shape).items()}
    if tied:
        wanted.pop("lm_head.weight")
        files.pop("lm_head.weight", None)  # some folders have it twice
    for name in sorted(wanted.keys() - files.keys()):
        raise _bad(folder, f"there is no tensor {name}", "copy the whole folder again")
    for name in sorted(files.keys() - wanted.keys()):
        if not name.endswith(".rotary_emb.inv_freq"):  # follows from rope_theta; old folders
            fix = "use weights of a Llama without biases, adapters or quantisation"
            raise _wrong(folder, f"has the tensor {name}, which this model lacks", fix)
    for path in sorted({files[name] for name in wanted}):
        names = [name for name in wanted if files[name] == path]
        _compare_tensors(path, {name: wanted[name] for name in names})
    return Weights(shape, {name: files[name] for name in wanted}, tied)


def _compare_config(path: Path, config: dict[str, Any], shape: Model) -> None:
    """The same architecture and numbers, or the first difference."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = config.get("rope_theta", rope.get("rope_theta", 10000.0))
    heads = config.get("num_attention_heads")
    pairs = [
        ("hidden_size", config.get("hidden_size"), "dim", shape.dim),
        ("num_hidden_layers", config.get("num_hidden_layers"), "num_layers", shape.num_layers),
        ("num_attention_heads", heads, "num_heads", shape.num_heads),
        ("num_key_value_heads", config.get("num_key_value_heads", heads), "num_kv_heads",
         shape.num_kv_heads),
        ("intermediate_size", config.get("intermediate_size"), "ffn_dim", shape.ffn_dim),
        ("vocab_size", config.get("vocab_size"), "vocab_size", shape.vocab_size),
        ("rms_norm_eps", config.get("rms_norm_eps", 1e-6), "norm_eps", shape.norm_eps),
        ("rope_theta", theta, "rope_theta", shape.rope_theta),
    ]  # fmt: skip
    for theirs, there, ours, here in pairs:
        if there != here:
            fix = f"give model.{ours}={there}, choose another model.size, or name another folder"
            raise _wrong(path, f"{theirs} is {there}, this model has {ours} {here}", fix)
    fixed: dict[str, tuple[Any, Any]] = {
        "model_type": ("llama", config.get("model_type")),
        "hidden_act": ("silu", config.get("hidden_act", "silu")),
        "attention_bias": (False, config.get("attention_bias", False)),
        "mlp_bias": (False, config.get("mlp_bias", False)),
        "rope_type": ("default", rope.get("rope_type", rope.get("type", "default"))),
        "head_dim": (shape.head_dim, config.get("head_dim") or shape.head_dim),
    }
    for key, (only, there) in fixed.items():
        if there != only:
            what = f"{key} is {there}, this model can only {only}"
            raise _wrong(path, what, "use weights of a plain Llama")


def _files(folder: Path) -> dict[str, Path]:
    """Every tensor's name to its file."""
    if (folder / INDEX).is_file():
        index = _read_json(folder / INDEX)
        parts = index.get("weight_map")
        if not isinstance(parts, dict):
            raise _bad(folder / INDEX, "it has no weight_map", "copy the folder again")
        return {str(name): folder / str(part) for name, part in parts.items()}
    if (folder / SINGLE).is_file():
        with _open(folder / SINGLE) as file:
            return dict.fromkeys(file.keys(), folder / SINGLE)
    fix = "name a folder of safetensors; transformers' save_pretrained writes one"
    raise _bad(folder, f"neither {SINGLE} nor {INDEX} is there", fix)


def _compare_tensors(path: Path, wanted: dict[str, tuple[int, ...]]) -> None:
    with _open(path) as file:
        there = set(file.keys())
        for name, size in wanted.items():
            if name not in there:
                raise _bad(path, f"there is no tensor {name}", "copy the file again")
            part = file.get_slice(name)
            if tuple(part.get_shape()) != size:
                what = f"{name} has shape {list(part.get_shape())}, this model {list(size)}"
                raise _wrong(path, what, "choose the model.size of these weights")
            if part.get_dtype() not in FLOATS:
                what = f"{name} is {part.get_dtype()}, not one of {', '.join(FLOATS)}"
                raise _wrong(path, what, "use weights that are not quantised")


def write_weights(
    folder: Path,
    shape: Model,
    read: Callable[[list[str]], dict[str, Tensor]],
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that transformers loads; it appears whole or not at all.

    Args:
        folder: must not be there yet.
        shape: of the model.
        read: published names to whole tensors of their shapes, for one file at a time.
        dtype: of the tensors in the files.
        shard_bytes: of one file.

    Raises:
        Stop: the folder is there already (78), or safetensors is not installed (69).
        OSError: it cannot be written.
    """
    if folder.exists():
        raise Stop(Stop.CONFIG, f"{folder}", "it is there already", "name a new folder")
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    parts = list(_split(shape, dtype.itemsize, shard_bytes))
    where: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = SINGLE if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        tensors = read(names)
        ready = {hf_name(name): _theirs(name, tensors[name], shape, dtype) for name in names}
        _library().torch.save_file(ready, draft / file, metadata={"format": "pt"})
        where |= dict.fromkeys(ready, file)
    if len(parts) > 1:
        total = sum(map(math.prod, weights_of(shape).values())) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    text = json.dumps(hf_config(shape, str(dtype).removeprefix("torch.")), indent=2) + "\n"
    (draft / "config.json").write_text(text, encoding="utf-8")
    draft.rename(folder)


def _theirs(name: str, tensor: Tensor, shape: Model, dtype: torch.dtype) -> Tensor:
    """A whole published weight as Hugging Face has it."""
    rows = hf_rows(name, np.arange(tensor.shape[0]), shape.head_dim)
    changed = torch.empty(tensor.shape, dtype=dtype)
    changed[torch.from_numpy(rows)] = tensor.to(dtype)
    return changed


def _split(shape: Model, item_bytes: int, shard_bytes: int) -> Iterator[list[str]]:
    """Names for each file."""
    names: list[str] = []
    size = 0
    for name, sizes in weights_of(shape).items():
        num_bytes = math.prod(sizes) * item_bytes
        if names and size + num_bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += num_bytes
    yield names


def _open(path: Path) -> Any:
    """Of one file of tensors.

    Raises:
        Stop: it is not there, or not whole (65).
    """
    library = _library()
    try:
        return library.safe_open(path, framework="pt")
    except (OSError, library.SafetensorError) as error:
        raise _bad(path, f"cannot be read: {error}", "copy the file again") from None


def _library() -> Any:
    try:
        import safetensors.torch  # noqa: PLC0415  (only those who use it need it)
    except ImportError:
        what, fix = "is not installed", "pip install safetensors"
        raise Stop(Stop.UNAVAILABLE, "Python package safetensors", what, fix) from None
    return safetensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fix = "name a folder in Hugging Face's format, or copy it again"
        raise _bad(path, f"cannot be read: {error}", fix) from None
    if not isinstance(found, dict):
        raise _bad(path, "it is not a JSON object", "copy the folder again")
    return found


def _bad(where: Path, what: str, fix: str) -> Stop:
    return Stop(Stop.DATA, f"train.init: {where}", what, fix)


def _wrong(where: Path, what: str, fix: str) -> Stop:
    return Stop(Stop.CONFIG, f"train.init: {where}", what, fix)
