"""What the recipe does about NeMo and Megatron-Core: CPU shims, defects that it works around.

Shims change torch for the whole process, and NeMo trains once in one, so whatever trains does it in
a forked child.
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

import resume
from tests.harness.child import LIMIT_S, in_child

torch = pytest.importorskip("torch")  # which imports pynvml here, and that warns
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "llama2_nemo"
SOURCE = (RECIPE / "cpu_compat.py").read_text()
TARGETS = re.findall(r'^@answers\(\s*"(.+?)"', SOURCE, re.MULTILINE)
SMALL = [
    "model.num_layers=1",
    "train.global_batch=4",
    "train.steps=3",
    "train.dropout=0.1",
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


def train(nemo: Any, folder: Path, data_dir: Path, checkpoint: Path | None = None) -> Any:
    """The recipe's own program in this process; {training step: [loss, gradient norm]}."""
    folder.mkdir(exist_ok=True)
    run = resume.Run(
        dir=folder, recipe_dir=RECIPE, resume=checkpoint, attempt=1, token=0,
        rank=0, local_rank=0, world_size=1, beat_dir=None,
    )  # fmt: skip
    config = nemo.config.load(RECIPE, [*SMALL, f"data.dir={data_dir}"])
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        nemo.train.train(run, config)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {str(line["step"]): [line["loss"], line["grad_norm"]] for line in lines}


@pytest.fixture(scope="module")
def whole(nemo: Any, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, losses) of a run with every shim, and dropout, whose random numbers some are for."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    losses = in_child(lambda: train(nemo, folder, data_dir))
    assert isinstance(losses, dict), losses
    assert sorted(losses) == ["1", "2", "3"]
    return folder, losses


def start_of(whole: Any) -> Path:
    return Path(whole[0] / "checkpoints" / "step_00000002")


def test_dropout_and_adamw_go_on_after_a_resume(
    nemo: Any, whole: Any, data_dir: Path, tmp_path: Path
) -> None:
    again = in_child(lambda: train(nemo, tmp_path / "run", data_dir, start_of(whole)))
    assert again == {"3": whole[1]["3"]}
    done = [json.loads((folder / "DONE").read_text()) for folder in (whole[0], tmp_path / "run")]
    assert done[0] == done[1]


@pytest.mark.parametrize("target", TARGETS)
def test_no_shim_has_outlived_its_reason(
    nemo: Any, whole: Any, data_dir: Path, tmp_path: Path, target: str
) -> None:
    enable = nemo.cpu_compat.enable

    def without(name: str, checkpoint: Path | None) -> Any:
        nemo.cpu_compat.enable = lambda: enable(without=[target])
        return train(nemo, tmp_path / name, data_dir, checkpoint)

    found = in_child(lambda: without("fresh", None))
    if found == whole[1]:  # needed to resume?
        found = in_child(lambda: without("resumed", start_of(whole)))
        assert found != {"3": whole[1]["3"]}, f"no need of {target}: remove it from cpu_compat.py"


def test_every_shim_names_a_line_that_the_libraries_have(nemo: Any) -> None:
    assert [shim.target for shim in nemo.cpu_compat.SHIMS] == TARGETS
    for shim in nemo.cpu_compat.SHIMS:
        found = importlib.util.find_spec(shim.file.split("/")[0])
        assert found is not None
        folder = Path(next(iter(found.submodule_search_locations or ())))
        assert shim.line in (folder.parent / shim.file).read_text(), shim.target


def test_nothing_is_replaced_when_cuda_is_there(nemo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (torch.zeros, torch.Tensor.type, torch.Tensor.to, torch.cuda.current_device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert nemo.cpu_compat.enable() is False
    after = (torch.zeros, torch.Tensor.type, torch.Tensor.to, torch.cuda.current_device)
    assert before == after


def test_the_librarys_way_to_load_adamw_still_needs_ours(
    nemo: Any, whole: Any, data_dir: Path, tmp_path: Path
) -> None:
    """Without the recipe's load the run ends, or goes on with another curve."""
    assert "load_optimizer_state_dict" in vars(nemo.strategy.Strategy)  # else its lack would end it

    def theirs() -> Any:
        del nemo.strategy.Strategy.load_optimizer_state_dict
        return train(nemo, tmp_path / "run", data_dir, start_of(whole))

    assert in_child(theirs) != {"3": whole[1]["3"]}, "NeMo's own will do: remove strategy.py's"


def test_norms_do_not_decay_and_the_rate_is_that_of_the_training_step(
    nemo: Any, whole: Any, data_dir: Path, tmp_path: Path
) -> None:
    def work() -> Any:
        found: list[Any] = []
        before = nemo.contract.Contract.on_train_batch_end

        def look(contract: Any, trainer: Any, *rest: Any) -> None:
            groups = trainer.optimizers[0].param_groups
            found.extend([contract.step, group["weight_decay"], group["lr"]] for group in groups)
            before(contract, trainer, *rest)

        nemo.contract.Contract.on_train_batch_end = look
        train(nemo, tmp_path / "run", data_dir, start_of(whole))
        return found

    found = in_child(work)
    assert {decay for _, decay, _ in found} == {0.0, 0.1}
    assert {(step, rate) for step, _, rate in found} == {(3, 2e-3 * 3 / 10)}
