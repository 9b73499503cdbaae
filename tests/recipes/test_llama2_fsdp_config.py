"""Options: every file loads, every mistake is one line that names the fix."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"


@pytest.mark.parametrize("size", sorted(p.stem for p in (RECIPE / "sizes").glob("*.yaml")))
def test_every_size_loads_and_divides_on_usual_world_sizes(fsdp: Any, size: str) -> None:
    config = fsdp.config.load(RECIPE, [f"model.size={size}"])
    assert config.model.size == size
    for world_size in (1, 2, 4) if size == "tiny" else (8, 64, 512):
        assert fsdp.config.accumulation(config, world_size) >= 1


def test_command_line_wins_and_numbers_are_read_as_numbers(fsdp: Any) -> None:
    words = ["train.steps=7", "optim.lr=1e-4", "train.recompute=2", "log.tensorboard=false"]
    config = fsdp.config.load(RECIPE, words)
    assert (config.train.steps, config.optim.lr, config.train.recompute) == (7, 1e-4, 2)
    assert config.log.tensorboard is False


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("train.stepz=7", "did you mean 'train.steps'?"),
        ("trian.steps=7", "did you mean 'train.steps'?"),
        ("nothing.like.it=7", "unknown option"),
        ("train.steps", "section.key=value"),
        ("steps=5", "section.key=value"),
        ("train.steps=many", "'many' is not of type int"),
        ("train.steps=true", "True is not of type int"),
        ("train.steps=0", "too small"),
        ("checkpoint.every=-1", "too small"),
        ("optim.lr=fast", "is not of type float"),
        ("log.tensorboard=1", "is not of type bool"),
        ("model.size=8b", "use one of 13b, 70b, 7b, tiny"),
        ("model.num_kv_heads=3", "not a multiple of num_kv_heads 3"),
        ("model.dim=130", "RoPE turns pairs"),
        ("train.seq_len=512", "more than model.max_seq_len 256"),
        ("train.precision=fp16", "use one of auto, bf16, fp32"),
        ("train.recompute=some", "use one of none, full"),
        ("checkpoint.mode=later", "use one of sync, thread, process"),
        ("eval.every=5", "hold some samples out"),
        ("data.blend=web", "'web' is not of type dict or NoneType"),
        ("train.steps=[", "not YAML"),
        ("train.steps=0100", "0100 is no plain number"),
        ("train.steps=1:00", "1:00 is no plain number"),
        ("train.steps=0x10", "0x10 is no plain number"),
        (f"train.steps={'9' * 5000}", "is no plain number"),
        ("train.steps=2024-13-45", "month"),
        ("train.steps=!!int ''", "is no plain number"),
        ("data.blend={a: 1, a: 2}", "'a' stands there twice"),
        ("optim.lr=.nan", "nan is no number"),
        ("optim.lr=nan", "nan is no number"),
        ("optim.lr=.inf", "inf is no number"),
    ],
)
def test_mistakes_are_one_line_with_a_fix(fsdp: Any, word: str, part: str) -> None:
    with pytest.raises(fsdp.errors.Stop) as caught:
        fsdp.config.load(RECIPE, [word])
    line = str(caught.value)
    assert caught.value.code == 78
    assert part in line
    assert ". Fix: " in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("file", "old", "new", "part"),
    [
        ("config.yaml", "  seed: 0", "  sead: 0", "did you mean 'train.seed'?"),
        ("config.yaml", "  seed: 0", "", "train.seed: missing"),
        ("config.yaml", "  seed: 0", "  seed: 0\n  micro_batch: 8", "sizes/tiny.yaml too"),
        ("config.yaml", "  size: tiny", "", "model.size is missing"),
        ("config.yaml", "train:", "train: [", "cannot be read"),
        ("config.yaml", "  seed: 0", "  seed: 0\n  seed: 1", "'seed' stands there twice"),
        ("config.yaml", "  seed: 0", "  seed: 010", "010 is no plain number"),
        ("sizes/tiny.yaml", "  dim: 128", "", "model.dim: missing"),
    ],
)
def test_mistakes_in_files(  # noqa: PLR0917  (a row of the table)
    fsdp: Any, tmp_path: Path, file: str, old: str, new: str, part: str
) -> None:
    shutil.copytree(RECIPE / "sizes", tmp_path / "sizes")
    shutil.copy(RECIPE / "config.yaml", tmp_path)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    with pytest.raises(fsdp.errors.Stop, match="Fix: ") as caught:
        fsdp.config.load(tmp_path, [])
    assert part in str(caught.value)


def test_global_batch_names_the_nearest_that_divide(fsdp: Any) -> None:
    config = fsdp.config.load(RECIPE, ["train.global_batch=30"])
    with pytest.raises(fsdp.errors.Stop, match="nearest valid values are 24 or 32"):
        fsdp.config.accumulation(config, 2)
    with pytest.raises(fsdp.errors.Stop, match=r"nearest valid values are 64$"):
        fsdp.config.accumulation(config, 16)
    two = fsdp.config.load(RECIPE, ["parallel.replicate=2", "train.global_batch=12"])
    with pytest.raises(fsdp.errors.Stop, match="2 does not divide 3 ranks"):
        fsdp.config.accumulation(two, 3)


@pytest.mark.parametrize(
    ("wanted", "plugin", "part"),
    [
        ("glo", None, "torch knows no 'glo'. Fix: did you mean 'gloo'? Or name the module"),
        ("noted", "plugins.noted", "did you mean 'noted_too'?"),
        ("warp", None, "torch knows no 'warp'. Fix: name the module that registers it"),
        ("nccl", None, "nccl needs GPUs"),
        ("gloo", "no_such_module", "cannot import no_such_module"),
    ],
)
def test_a_back_end_that_nobody_registers_is_one_line(
    fsdp: Any, monkeypatch: pytest.MonkeyPatch, wanted: str, plugin: str | None, part: str
) -> None:
    backend = fsdp.backend

    def registers(name: str) -> None:
        if name != "plugins.noted":
            raise ImportError(name)
        monkeypatch.setattr(backend.Backend, "backend_list", ["undefined", "gloo", "noted_too"])

    monkeypatch.setattr(backend.importlib, "import_module", registers)
    with pytest.raises(fsdp.errors.Stop, match="Fix: ") as caught:
        backend.backend_name(wanted, plugin, on_gpu=False)
    assert part in str(caught.value)
    assert caught.value.code == 78
    assert "\n" not in str(caught.value)
    assert backend.backend_name("auto", None, on_gpu=False) == "gloo"
    assert backend.backend_name("auto", None, on_gpu=True) == "nccl"


def test_every_option_is_explained(fsdp: Any) -> None:
    """A reason beside each option of config.yaml, and a row in the README's table."""
    readme = (RECIPE / "README.md").read_text()
    for section, keys in fsdp.config.load(RECIPE, []).to_dict().items():
        for key in keys:
            assert f"`{section}.{key}`" in readme, f"{section}.{key} is not in README.md"
    for line in (RECIPE / "config.yaml").read_text().splitlines():
        if line.startswith("  ") and not line.strip().startswith("#"):
            assert "#" in line, line
