"""Weights in and out of Hugging Face's format, against transformers: the same logits both ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shape(fsdp: Any) -> Any:
    """Like 70b: 8 query heads, 4 of keys and values; a RoPE that a default would not hit."""
    return replace(
        fsdp.config.load(ROOT / "recipes" / "llama2_fsdp", []).model,
        dim=64, num_layers=2, ffn_dim=96, vocab_size=160, rope_theta=5e5,
    )  # fmt: skip


def theirs(shape: Any, *, tied: bool = False) -> Any:
    """Transformers' own Llama of that shape, random."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=shape.dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.ffn_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_seq_len,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms too, or nobody would miss them
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def logits(model: Any, shape: Any) -> Any:
    tokens = torch.arange(2 * 40).reshape(2, 40) * 7 % shape.vocab_size
    with torch.no_grad():
        out = model(tokens)
    return getattr(out, "logits", out).float()


def ours(fsdp: Any, shape: Any, weights: Any) -> Any:
    model = fsdp.model.Llama(shape, 64)
    model.reset_buffers()
    fsdp.model.copy_weights(model, weights.rows)
    return model


@pytest.mark.parametrize(
    "case", ["several files", "one file", "tied", "bf16", "every head its own"]
)
def test_weights_of_transformers_give_the_same_logits(
    fsdp: Any, shape: Any, case: str, tmp_path: Path
) -> None:
    if case == "every head its own":
        shape = replace(shape, num_kv_heads=shape.num_heads)
    model = theirs(shape, tied=case == "tied")
    if case == "bf16":
        model = model.bfloat16()
    size = "100KB" if case == "several files" else "1GB"
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (case == "several files")
    weights = fsdp.hf_weights.open_weights(tmp_path, shape)
    got = logits(ours(fsdp, shape, weights), shape)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(got, logits(again, shape), rtol=0, atol=2e-6)


def test_a_rank_gets_the_rows_that_it_owns(fsdp: Any, shape: Any, tmp_path: Path) -> None:
    theirs(shape).save_pretrained(tmp_path)
    weights = fsdp.hf_weights.open_weights(tmp_path, shape)
    for name, size in fsdp.hf_names.weights_of(shape).items():
        whole = weights.rows(name, np.arange(size[0]))
        assert whole.shape == size
        for first, last in ((0, 3), (size[0] // 2 + 1, size[0])):
            np.testing.assert_array_equal(
                weights.rows(name, np.arange(first, last)), whole[first:last]
            )


@pytest.mark.parametrize("shard_bytes", [1 << 30, 40_000])
def test_what_is_written_is_what_transformers_read(
    fsdp: Any, shape: Any, shard_bytes: int, tmp_path: Path
) -> None:
    model = fsdp.model.Llama(shape, 64)
    model.reset_buffers()
    fsdp.model.init_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    mine = dict(model.named_parameters())
    folder = tmp_path / "out"
    fsdp.hf_weights.write_weights(
        folder,
        shape,
        lambda names: {n: mine[n].detach() for n in names},
        torch.float32,
        shard_bytes,
    )
    assert (folder / "model.safetensors.index.json").exists() == (shard_bytes < 1 << 30)
    loaded, report = transformers.LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert {key: list(value) for key, value in report.items() if value} == {}
    torch.testing.assert_close(
        logits(loaded.eval(), shape), logits(model, shape), rtol=0, atol=2e-6
    )
    back = ours(fsdp, shape, fsdp.hf_weights.open_weights(folder, shape))
    for name, parameter in back.named_parameters():
        assert torch.equal(parameter, mine[name]), name
    with pytest.raises(fsdp.errors.Stop, match="it is there already") as stop:
        fsdp.hf_weights.write_weights(folder, shape, lambda _: {}, torch.float32)
    assert stop.value.code == 78


def edit(folder: Path, name: str, **values: Any) -> None:
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(found | values))


def tensors(folder: Path, change: Any) -> None:
    """Change the tensors of a folder that has one file."""
    from safetensors.torch import load_file, save_file

    found = load_file(folder / "model.safetensors")
    change(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


NORM, QUERY = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
BROKEN: dict[str, tuple[Callable[[Path], Any], int, str]] = {
    "no folder": (lambda f: f.rename(f.with_name("moved")), 65, "config.json: cannot be read"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), 65, "cannot be read"),
    "other width": (
        lambda f: edit(f, "config.json", hidden_size=4096),
        78,
        "hidden_size is 4096, this model has dim 64. Fix: give model.dim=4096",
    ),
    "other RoPE": (
        lambda f: edit(f, "config.json", rope_parameters={"rope_theta": 1e4}),
        78,
        "rope_theta is 10000.0, this model has rope_theta 500000.0",
    ),
    "stretched RoPE": (
        lambda f: edit(f, "config.json", rope_scaling={"type": "linear", "factor": 2.0},
                       rope_parameters=None, rope_theta=5e5),
        78,
        "rope_type is linear, this model can only default",
    ),
    "not a Llama": (lambda f: edit(f, "config.json", model_type="mistral"), 78, "is mistral"),
    "no safetensors": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        65,
        "neither model.safetensors nor model.safetensors.index.json is there",
    ),
    "a tensor is missing": (
        lambda f: tensors(f, lambda t: t.pop(QUERY)),
        65,
        f"there is no tensor {QUERY}",
    ),
    "a tensor of another shape": (
        lambda f: tensors(f, lambda t: t.update({NORM: torch.ones(65)})),
        78,
        f"{NORM} has shape [65], this model [64]",
    ),
    "biases": (
        lambda f: tensors(f, lambda t: t.update({BIAS: t[NORM] + 1})),
        78,
        f"has the tensor {BIAS}, which this model lacks",
    ),
    "quantised": (
        lambda f: tensors(f, lambda t: t.update({NORM: t[NORM].to(torch.int8)})),
        78,
        f"{NORM} is I8",
    ),
    "half a file": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:50_000]
        ),
        65,
        "cannot be read",
    ),
    "a shard is missing": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict.fromkeys(_names(f), "model-00002.safetensors")})
        ),
        65,
        "model-00002.safetensors: cannot be read",
    ),
    "an index without a map": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        65,
        "it has no weight_map",
    ),
}  # fmt: skip


def _names(folder: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return list(file.keys())


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_is_one_line_before_anything_is_loaded(
    fsdp: Any, shape: Any, name: str, tmp_path: Path
) -> None:
    damage, code, text = BROKEN[name]
    folder = tmp_path / "hf"
    theirs(shape).save_pretrained(folder)
    damage(folder)
    with pytest.raises(fsdp.errors.Stop) as stop:
        fsdp.hf_weights.open_weights(folder, shape)
    assert stop.value.code == code
    assert text in str(stop.value)
    assert str(folder) in str(stop.value)
    assert "\n" not in str(stop.value)


def test_old_folders_have_frequencies_too(fsdp: Any, shape: Any, tmp_path: Path) -> None:
    """As those of Llama 2 that were converted in 2023."""
    theirs(shape).save_pretrained(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors(tmp_path, lambda t: t.update({name: torch.ones(8)}))
    edit(tmp_path, "config.json", rope_parameters=None, rope_theta=5e5, rope_scaling=None)
    assert name not in fsdp.hf_weights.open_weights(tmp_path, shape).files
