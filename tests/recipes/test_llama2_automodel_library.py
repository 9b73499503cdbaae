"""What the recipe does about NeMo AutoModel: CPU shims, names and weights.

Shims change torch for the whole process, so whatever trains does it in a forked child.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import resume
from tests.harness.child import LIMIT_S, in_child

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "llama2_automodel"
SOURCE = (RECIPE / "cpu_compat.py").read_text()
TARGETS = re.findall(r'^@answers\(\s*"(.+?)"', SOURCE, re.MULTILINE)
SMALL = [
    "model.num_layers=1",
    "train.global_batch=4",
    "train.steps=3",
    "checkpoint.every=2",
    "checkpoint.mode=sync",
    "log.tensorboard=false",
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    command = [sys.executable, str(RECIPE / "prepare.py"), "--out", str(out)]
    subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True)
    return out


def train(automodel: Any, folder: Path, data_dir: Path, checkpoint: Path | None = None) -> Any:
    """The recipe's own program in this process; {training step: [loss, gradient norm]}."""
    folder.mkdir(exist_ok=True)
    run = resume.Run(
        dir=folder, recipe_dir=RECIPE, resume=checkpoint, attempt=1, token=0,
        rank=0, local_rank=0, world_size=1, beat_dir=None,
    )  # fmt: skip
    config = automodel.config.load(RECIPE, [*SMALL, f"data.dir={data_dir}"])
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        automodel.train.train(run, config)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {str(line["step"]): [line["loss"], line["grad_norm"]] for line in lines}


@pytest.fixture(scope="module")
def whole(automodel: Any, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, losses) of a run with every shim."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    losses = in_child(lambda: train(automodel, folder, data_dir))
    assert isinstance(losses, dict), losses
    assert sorted(losses) == ["1", "2", "3"]
    return folder, losses


def start_of(whole: Any) -> Path:
    return Path(whole[0] / "checkpoints" / "step_00000002")


def test_adamw_goes_on_after_a_resume(
    automodel: Any, whole: Any, data_dir: Path, tmp_path: Path
) -> None:
    again = in_child(lambda: train(automodel, tmp_path / "run", data_dir, start_of(whole)))
    assert again == {"3": whole[1]["3"]}
    done = [json.loads((folder / "DONE").read_text()) for folder in (whole[0], tmp_path / "run")]
    assert done[0] == done[1]


@pytest.mark.parametrize("target", TARGETS)
def test_no_shim_has_outlived_its_reason(
    automodel: Any, whole: Any, data_dir: Path, tmp_path: Path, target: str
) -> None:
    enable = automodel.cpu_compat.enable

    def without(name: str, checkpoint: Path | None) -> Any:
        automodel.cpu_compat.enable = lambda: enable(without=[target])
        return train(automodel, tmp_path / name, data_dir, checkpoint)

    found = in_child(lambda: without("fresh", None))
    if found == whole[1]:  # needed to resume?
        found = in_child(lambda: without("resumed", start_of(whole)))
        assert found != {"3": whole[1]["3"]}, f"no need of {target}: remove it from cpu_compat.py"


def test_every_shim_names_a_line_that_the_libraries_have(automodel: Any) -> None:
    assert [shim.target for shim in automodel.cpu_compat.SHIMS] == TARGETS
    for shim in automodel.cpu_compat.SHIMS:
        found = importlib.util.find_spec(shim.file.split("/")[0])
        assert found is not None
        folder = Path(next(iter(found.submodule_search_locations or ())))
        assert shim.line in (folder.parent / shim.file).read_text(), shim.target


def test_nothing_is_replaced_when_cuda_is_there(
    automodel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.cuda.current_device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert automodel.cpu_compat.enable() is False
    assert torch.cuda.current_device is before


def test_every_weight_has_a_published_name_and_every_row_one_source(automodel: Any) -> None:
    from transformers import LlamaForCausalLM

    shape = automodel.config.load(RECIPE, []).model
    with torch.device("meta"):
        model = LlamaForCausalLM(automodel.model.describe(shape))
    sizes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    names = automodel.model.published(shape)
    assert sizes == {hf: automodel.hf_names.weights_of(shape)[name] for hf, name in names.items()}
    count = sum(weight.numel() for weight in model.parameters())
    assert count == automodel.model.count_parameters(shape)
    for name in ("layers.0.attention.wq.weight", "layers.0.attention.wo.weight"):
        rows = automodel.model.published_rows(name, shape.dim, shape.head_dim)
        assert sorted(rows) == list(range(shape.dim))


def test_the_halves_of_a_head_are_the_firsts_and_seconds_of_its_pairs(automodel: Any) -> None:
    shape = automodel.config.load(RECIPE, []).model
    name = "layers.0.attention.wk.weight"
    rows = automodel.model.published_rows(name, 2 * shape.head_dim, shape.head_dim)
    half = shape.head_dim // 2
    assert list(rows[:half]) == list(range(0, shape.head_dim, 2))
    assert list(rows[half : shape.head_dim]) == list(range(1, shape.head_dim, 2))
    assert rows[shape.head_dim] == shape.head_dim
