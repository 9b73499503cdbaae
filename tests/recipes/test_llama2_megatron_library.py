"""What the recipe does about Megatron-Core: CPU shims, defects that it works around, own weights.

Shims change torch for the whole process, so whatever trains does it in a forked child.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resume
from tests.harness.child import LIMIT_S, in_child

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "llama2_megatron"
SOURCE = (RECIPE / "cpu_compat.py").read_text()
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


def make_run(folder: Path, checkpoint: Path | None = None) -> resume.Run:
    folder.mkdir(exist_ok=True)
    return resume.Run(
        dir=folder, recipe_dir=RECIPE, resume=checkpoint, attempt=1, token=0,
        rank=0, local_rank=0, world_size=1, beat_dir=None,
    )  # fmt: skip


def train(
    megatron: Any, folder: Path, data_dir: Path, *words: str, checkpoint: Path | None = None
) -> dict[int, Any]:
    """The recipe's own program in this process; {training step: loss}."""
    config = megatron.config.load(RECIPE, [*SMALL, f"data.dir={data_dir}", *words])
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        megatron.train.train(make_run(folder, checkpoint), config)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def build(megatron: Any, data_dir: Path, *words: str) -> tuple[Any, list[Any], Any]:
    """(config, models, optimizer) of one process, weights not yet set."""
    config = megatron.config.load(RECIPE, [*SMALL, f"data.dir={data_dir}", *words])
    kernels = megatron.model.Kernels.here()
    megatron.train.connect(make_run(data_dir), config, kernels)
    megatron.steps.seed_dropout(0, 0)
    models = megatron.model.build(config, kernels)
    return config, models, megatron.train.make_optimizer(config, kernels, models)


@pytest.fixture(scope="module")
def with_all(megatron: Any, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses with every shim, and dropout, whose random numbers three of them are about."""
    folder = tmp_path_factory.mktemp("all") / "run"
    losses = in_child(lambda: train(megatron, folder, data_dir, "train.dropout=0.1"))
    assert sorted(losses) == ["1", "2", "3"], losses
    assert resume.verify(folder / "checkpoints" / "step_00000002") == []
    return losses


@pytest.mark.parametrize(
    "words",
    [
        ["model.norm=layer", "model.mlp=gelu", "model.bias=true", "train.dropout=0.1"],
        ["model.num_experts=4", "model.experts_per_token=2"],
        ["train.precision=bf16", "train.recompute=attention", "checkpoint.format=dp_reshardable"],
    ],
)
def test_other_models_train_and_resume(
    megatron: Any, tmp_path: Path, data_dir: Path, words: list[str]
) -> None:
    whole = in_child(lambda: train(megatron, tmp_path / "whole", data_dir, *words))
    assert whole["1"] == pytest.approx(6.93, abs=0.06), whole
    start = tmp_path / "whole" / "checkpoints" / "step_00000002"
    again = in_child(
        lambda: train(megatron, tmp_path / "again", data_dir, *words, checkpoint=start)
    )
    assert again == {"3": whole["3"]}
    done = [json.loads((tmp_path / name / "DONE").read_text()) for name in ("whole", "again")]
    assert done[0] == done[1]


@pytest.mark.parametrize("target", TARGETS)
def test_no_shim_has_outlived_its_reason(
    megatron: Any, with_all: Any, tmp_path: Path, data_dir: Path, target: str
) -> None:
    enable = megatron.cpu_compat.enable

    def without() -> Any:
        megatron.cpu_compat.enable = lambda: enable(without=[target])
        return train(megatron, tmp_path / "run", data_dir, "train.dropout=0.1")

    found = in_child(without)
    assert found != with_all, f"the same without {target}: remove it from cpu_compat.py"


def test_every_shim_names_a_line_that_the_library_has(megatron: Any) -> None:
    found = importlib.util.find_spec("megatron.core")
    assert found is not None
    assert found.origin is not None
    assert [shim.target for shim in megatron.cpu_compat.SHIMS] == TARGETS
    for shim in megatron.cpu_compat.SHIMS:
        assert shim.line in (Path(found.origin).parent / shim.file).read_text(), shim.target


def test_nothing_is_replaced_when_cuda_is_there(
    megatron: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (torch.zeros, torch.Tensor.type, torch.cuda.current_device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert megatron.cpu_compat.enable() is False
    assert before == (torch.zeros, torch.Tensor.type, torch.cuda.current_device)


def test_no_weight_is_left_as_it_was_in_memory(megatron: Any, data_dir: Path) -> None:
    def work() -> Any:
        config, models, _ = build(megatron, data_dir)
        fresh = [n for n, p in models[0].named_parameters() if p.isnan().all()]
        source = megatron.weights.initial(config.model, 0)
        megatron.weights.fill(models, config.model, source)
        left = [n for n, p in models[0].named_parameters() if not p.isfinite().all()]
        marked = [
            n for n, p in models[0].named_parameters() if getattr(p, "tensor_model_parallel", False)
        ]
        return len(fresh), left, marked

    fresh, left, marked = in_child(work)
    assert fresh >= 5  # all matrices: the norms are set by torch
    assert left == []
    # Without the mark their gradients would be counted once, not on every tensor parallel rank.
    assert [name.split(".")[-2] for name in marked] == [
        *("word_embeddings", "linear_proj", "linear_qkv", "linear_fc1", "linear_fc2"),
        "output_layer",
    ]
    shape = megatron.config.load(RECIPE, SMALL).model
    with pytest.raises(KeyError):
        megatron.weights.pieces(
            "decoder.layers.0.mlp.new.weight", shape, megatron.weights.Shard(0, 1)
        )


def test_every_weight_counts_its_own_updates_after_a_load(
    megatron: Any, tmp_path: Path, data_dir: Path
) -> None:
    """The library gives all weights one step tensor: AdamW then counts as many as there are."""

    def work() -> Any:
        config, models, optimizer = build(megatron, data_dir)
        megatron.checkpoint.load(checkpoint, models, optimizer, 2, "fully_reshardable")
        (part,) = optimizer.chained_optimizers
        steps = [slots["step"] for slots in part.optimizer.state.values()]
        own = [int(step) for step in steps], len({step.data_ptr() for step in steps})
        part.load_state_dict(part.state_dict())  # the library's way, without the checkpoint's state
        theirs = len({slots["step"].data_ptr() for slots in part.optimizer.state.values()})
        return own, theirs, config.model.num_layers

    in_child(lambda: train(megatron, tmp_path / "run", data_dir))
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000002"
    (steps, distinct), theirs, _ = in_child(work)
    assert set(steps) == {2}
    assert distinct == len(steps) > 5
    assert theirs == 1, "the library no longer shares the step: load may use part.load_state_dict"


def test_dropout_is_repeated_after_a_resume(megatron: Any, tmp_path: Path, data_dir: Path) -> None:
    words = ("train.dropout=0.1", "train.recompute=full")
    whole = in_child(lambda: train(megatron, tmp_path / "whole", data_dir, *words))
    start = tmp_path / "whole" / "checkpoints" / "step_00000002"

    def go_on(name: str) -> dict[int, Any]:
        return train(megatron, tmp_path / name, data_dir, *words, checkpoint=start)

    def go_on_with_other_random_numbers() -> dict[int, Any]:
        seed = megatron.steps.seed_dropout
        megatron.train.seed_dropout = lambda _, step: seed(1, step)
        return go_on("other")

    assert in_child(lambda: go_on("resumed")) == {"3": whole["3"]}
    assert in_child(go_on_with_other_random_numbers) != {"3": whole["3"]}


def test_weight_decay_spares_norms_and_rates_are_those_of_the_other_recipe(
    megatron: Any, fsdp: Any, data_dir: Path
) -> None:
    def work() -> Any:
        config, _, optimizer = build(megatron, data_dir)
        library = [(group["wd_mult"], group["weight_decay"]) for group in optimizer.param_groups]
        megatron.train.set_learning_rate(optimizer, config.optim, 1, 20)
        ours = [(group["wd_mult"], group["weight_decay"]) for group in optimizer.param_groups]
        return library, ours, [group["lr"] for group in optimizer.param_groups]

    library, ours, rates = in_child(work)
    assert sorted(ours) == [[0.0, 0.0], [1.0, 0.1]]
    assert sorted(library) == [[0.0, 0.1], [1.0, 0.1]], "the library now does it: simplify"
    assert set(rates) == {2e-3 / 10}
    options = fsdp.config.load(ROOT / "recipes" / "llama2_fsdp", []).optim
    for step in range(1, 61):
        want = fsdp.train.learning_rate(options, step, 60)
        assert megatron.train.learning_rate(options, step, 60) == want


def names_of(shape: Any) -> list[str]:
    """Parameters of a whole model as the library has them."""
    layer = ["input_layernorm.weight", "pre_mlp_layernorm.weight"]
    linear = ["self_attention.linear_qkv", "self_attention.linear_proj"]
    if shape.num_experts:
        layer.append("mlp.router.weight")
        for number in range(shape.num_experts):
            part = f"mlp.experts.local_experts.{number}"
            linear += [f"{part}.linear_fc1", f"{part}.linear_fc2"]
    else:
        linear += ["mlp.linear_fc1", "mlp.linear_fc2"]
    kinds = ["weight", "bias"] if shape.bias else ["weight"]
    layer += [f"{name}.{kind}" for name, kind in itertools.product(linear, kinds)]
    if shape.norm == "layer":
        layer += ["input_layernorm.bias", "pre_mlp_layernorm.bias"]
    outside = ["embedding.word_embeddings.weight", "output_layer.weight"]
    outside += ["decoder.final_layernorm.weight"]
    outside += ["decoder.final_layernorm.bias"] if shape.norm == "layer" else []
    layers = [f"decoder.layers.{n}.{name}" for n in range(shape.num_layers) for name in layer]
    return [*layers, *outside]


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model.norm=layer", "model.mlp=gelu", "model.bias=true"],
        ["model.num_experts=4", "model.experts_per_token=2"],
    ],
)
def test_shards_make_up_every_published_weight_once(
    megatron: Any, tensor: int, words: list[str]
) -> None:
    shape = megatron.config.load(RECIPE, words).model
    weights, source = megatron.weights, megatron.weights.initial(shape, 3)
    total = 0
    for name in names_of(shape):
        parts = []
        for rank in range(tensor):
            pieces = weights.pieces(name, shape, weights.Shard(rank, tensor))
            columns = [slice(*(piece.columns or (None,))) for piece in pieces]
            rows = [source(piece.name, piece.rows) for piece in pieces]
            parts.append(np.concatenate([r[..., c] for r, c in zip(rows, columns, strict=True)]))
        made = weights._hashes(name, shape, parts)
        want = weights._hashes(
            name,
            shape,
            [np.concatenate([source(p.name, p.rows) for p in whole(weights, name, shape)])],
        )
        assert made == want, name
        total += sum(source(n, np.arange(weights._rows(n, shape))).size for n in made)
    assert total == megatron.memory.count_parameters(shape)


def whole(weights: Any, name: str, shape: Any) -> Any:
    return weights.pieces(name, shape, weights.Shard(0, 1))


def test_initial_weights_are_those_of_the_other_recipe(megatron: Any, fsdp: Any) -> None:
    shape = fsdp.config.load(ROOT / "recipes" / "llama2_fsdp", []).model
    model = fsdp.model.Llama(shape, seq_len=8)
    fsdp.model.init_weights(model, seed=5)
    source = megatron.weights.initial(megatron.config.load(RECIPE, []).model, 5)
    for name, parameter in model.named_parameters():
        got = source(name, np.arange(parameter.shape[0]))
        assert np.array_equal(got, parameter.detach().numpy()), name


def test_goldens_of_both_recipes_are_the_same_curve() -> None:
    """Tensor 2 x pipeline 2 with sequence parallel against FSDP on two processes."""
    one, other = (
        json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())
        for name in ("llama2_fsdp", "llama2_megatron")
    )
    assert one["samples"] == other["samples"]
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)


def test_megatrons_own_reader_opens_what_prepare_wrote(data_dir: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    found = IndexedDataset(str(data_dir / "tokens"), mmap=True)
    tokens = np.fromfile(data_dir / "tokens.bin", dtype=np.uint16)
    assert len(found) == len(found.document_indices) - 1 == 9
    assert sum(found.sequence_lengths) == len(tokens) == 484_949
    ends = np.cumsum(found.sequence_lengths)
    for number, end in enumerate(ends):
        start = end - found.sequence_lengths[number]
        assert np.array_equal(found[number], tokens[start:end])
        assert found[number][-1] == 0  # the end of the document
