"""Saving in the background writes the state of its training step, and a failure is heard of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import resume

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "llama2_fsdp"
FACTS = {"run": {}, "step": 3, "consumed": 48, "loss": 5.0}


def make_run(folder: Path, token: int = 0) -> resume.Run:
    return resume.Run(
        dir=folder,
        recipe_dir=RECIPE,
        resume=None,
        attempt=1,
        token=token,
        rank=0,
        local_rank=0,
        world_size=1,
        beat_dir=None,
    )


@pytest.fixture
def trained(fsdp: Any) -> Iterator[Any]:
    """(config, model, optimizer, group) of one process after one update."""
    import torch.distributed as dist

    config = fsdp.config.load(RECIPE, ["model.num_layers=1"])
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, optimizer = fsdp.train.build(config, torch.device("cpu"))
        fsdp.model.init_weights(model, 0)
        fsdp.checkpoint.live_state(model, optimizer)
        update(fsdp, model, optimizer)
        yield config, model, optimizer, dist.new_group(backend="gloo")
    finally:
        dist.destroy_process_group()


def update(fsdp: Any, model: Any, optimizer: Any) -> None:
    tokens = torch.arange(129)[None]
    fsdp.train.cross_entropy(model, tokens).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def snapshot(fsdp: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    state = fsdp.checkpoint.live_state(model, optimizer)
    return {name: fsdp.train.whole(t).detach().clone() for name, t in state.items()}


@pytest.mark.parametrize("mode", ["thread", "sync"])
def test_later_training_steps_do_not_change_what_is_written(
    fsdp: Any, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    _, model, optimizer, group = trained
    want = snapshot(fsdp, model, optimizer)
    trained_on = threading.Event()
    save = fsdp.checkpoint.state_dict_saver.save

    def late(*args: Any, **more: Any) -> Any:
        assert mode == "sync" or trained_on.wait(60)
        return save(*args, **more)

    monkeypatch.setattr(fsdp.checkpoint.state_dict_saver, "save", late)
    options = fsdp.config.Checkpoint(every=1, mode=mode)
    state = fsdp.checkpoint.live_state(model, optimizer)
    saver = fsdp.checkpoint.Saver(make_run(tmp_path), options, state, group, None)
    saver.save(3, FACTS)
    update(fsdp, model, optimizer)
    trained_on.set()
    saver.finish()
    assert saver.problem is None
    path = tmp_path / "checkpoints" / "step_00000003"
    assert resume.verify(path) == []

    now = snapshot(fsdp, model, optimizer)
    assert all(not torch.equal(now[name], want[name]) for name in want)
    fsdp.checkpoint.load(path, model, optimizer, 3, group)
    loaded = snapshot(fsdp, model, optimizer)
    assert loaded.keys() == want.keys()
    assert all(torch.equal(loaded[name], want[name]) for name in want)
    assert {float(slots["step"]) for slots in optimizer.state.values()} == {3.0}
    assert fsdp.checkpoint.read_facts(path) == FACTS


def test_a_step_is_saved_once(fsdp: Any, trained: Any, tmp_path: Path) -> None:
    _, model, optimizer, group = trained
    options = fsdp.config.Checkpoint(every=1, mode="thread")
    state = fsdp.checkpoint.live_state(model, optimizer)
    saver = fsdp.checkpoint.Saver(make_run(tmp_path), options, state, group, 3)
    for step in (3, 4, 4, 5, 6):  # 3 is the one it resumed from
        saver.save(step, FACTS)
    saver.finish()
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_00000004", "step_00000005", "step_00000006"]


@pytest.mark.parametrize(("kind", "code"), [("fenced", 75), ("file in the way", 74)])
def test_a_failed_save_is_remembered(
    fsdp: Any, trained: Any, tmp_path: Path, kind: str, code: int
) -> None:
    _, model, optimizer, group = trained
    if kind == "fenced":
        (tmp_path / "owner.json").write_text('{"token": 2}')
    else:
        (tmp_path / "checkpoints").write_text("not a folder")
    options = fsdp.config.Checkpoint(every=1, mode="thread")
    state = fsdp.checkpoint.live_state(model, optimizer)
    saver = fsdp.checkpoint.Saver(make_run(tmp_path, token=1), options, state, group, None)
    saver.save(3, FACTS)
    saver.finish()
    assert saver.problem.code == code
    assert "\n" not in str(saver.problem)


@pytest.mark.parametrize(
    ("saved", "part"),
    [
        ({"a": 1, "train.seed": 0}, "made with train.seed=0, this run has 1"),
        ({"a": 1}, "made with train.seed=None, this run has 1"),
    ],
)
def test_another_run_is_refused(fsdp: Any, saved: dict[str, Any], part: str) -> None:
    with pytest.raises(fsdp.errors.Stop, match="Fix: ") as caught:
        fsdp.checkpoint.compare(Path("step_00000001"), saved, {"a": 1, "train.seed": 1})
    assert caught.value.code == 78
    assert part in str(caught.value)


def test_data_with_more_tokens_than_the_model_is_refused(fsdp: Any, tmp_path: Path) -> None:
    import numpy as np

    np.zeros(999, np.uint16).tofile(tmp_path / "tokens.bin")
    meta = '{"dtype": "uint16", "num_tokens": 999, "vocab_size": 32000, "sha256": "x"}'
    (tmp_path / "meta.json").write_text(meta)
    config = fsdp.config.load(RECIPE, [f"data.dir={tmp_path}"])
    with pytest.raises(fsdp.errors.Stop, match="32000 tokens, the model 1024") as caught:
        fsdp.train.open_data(make_run(tmp_path), config)
    assert caught.value.code == 78
