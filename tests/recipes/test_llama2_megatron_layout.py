"""The layout validator: a wrong layout is one line that names valid ones; those are valid."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.recipes.conftest import load_recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "llama2_megatron"
LAYOUTS = sorted(path.stem for path in (RECIPE / "layouts").glob("*.yaml"))
PUBLISHED = {"7b": 6_738_415_616, "13b": 13_015_864_320, "70b": 68_976_648_192}
M = load_recipe("llama2_megatron", "config", "layout", "memory", "errors")


def config(*words: str) -> Any:
    return M.config.load(RECIPE, list(words))


def named(name: str, *words: str) -> Any:
    size, machine = name.split(".")
    return config(f"model.size={size}", f"parallel.machine={machine}", *words)


def error(conf: Any, total: int, per_node: int) -> str:
    with pytest.raises(M.errors.Stop) as caught:
        M.layout.check(conf, M.layout.Ranks(total, per_node))
    assert caught.value.code == 78
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_shipped_layouts_are_valid_from_the_number_of_nodes_that_they_say(name: str) -> None:
    conf = named(name)
    first = (RECIPE / "layouts" / f"{name}.yaml").read_text().splitlines()[0]
    nodes = int(first.partition("from ")[2].split()[0]) if "from " in first else 1
    per_node = conf.machine.gpus or 1
    for factor in (1, 2, 4):
        M.layout.check(conf, M.layout.Ranks(nodes * factor * per_node, per_node))
    if nodes > 1:
        error(conf, nodes // 2 * per_node, per_node)
    if conf.machine.memory_gb:
        need = M.memory.estimate(conf, nodes * per_node).total / M.memory.GIB
        assert f"{need:.0f} GiB of {conf.machine.memory_gb * M.memory.USABLE:.0f}" in first
        row = f"| {need:.0f} of {conf.machine.memory_gb * M.memory.USABLE:.0f} |"
        assert row in (RECIPE / "README.md").read_text()


def test_layouts_of_one_machine_agree_about_it() -> None:
    facts: dict[str, Any] = {}
    for name in LAYOUTS:
        machine = named(name).machine
        assert facts.setdefault(name.split(".")[1], machine) == machine


@pytest.mark.parametrize("size", [*PUBLISHED, "15b_code"])
def test_every_real_size_has_a_layout_for_p4d_and_p5(size: str) -> None:
    assert {f"{size}.p4d", f"{size}.p5"} <= set(LAYOUTS)
    count = M.memory.count_parameters(named(f"{size}.p5").model)
    assert count == PUBLISHED.get(size, 15_957_889_024)


@pytest.mark.parametrize(
    ("name", "words", "ranks", "parts"),
    [
        ("70b.p5", [], (24, 8), ["24 ranks are not a multiple of tensor 8 x", "32 ranks as it is"]),
        ("70b.p5", ["parallel.tensor=16"], (128, 8), ["must share one", "parallel.tensor=8"]),
        ("70b.p5", ["parallel.pipeline=3"], (96, 8), ["80 layers do not divide", "pipeline=4"]),
        ("70b.p5", ["parallel.pipeline=2"], (16, 8), ["GiB for each GPU, 72 GiB are usable of 80"]),
        ("15b_code.p5", ["parallel.tensor=8"], (64, 8), ["num_kv_heads 4", "parallel.tensor=4"]),
        ("7b.p5", ["train.micro_batch=16"], (64, 8), ["are usable of 80", "train.micro_batch="]),
        ("7b.p5", [], (56, 8), ["not a multiple of micro_batch 1 x 28", "global_batch=1036"]),
        ("7b.p5", ["parallel.interleave=2"], (8, 8), ["needs parallel.pipeline above 1"]),
        ("7b.p5", ["parallel.context=3"], (48, 8), ["does not divide by", "parallel.context=1"]),
        ("tiny.any", ["parallel.tensor=3"], (6, 3), ["model.num_heads 8", "parallel.tensor=1"]),
        ("tiny.any", [], (3, 3), ["= 12. Fix: nearest valid: train.global_batch=12"]),
        ("tiny.any", ["parallel.expert=2"], (2, 2), ["model.num_experts 0", "parallel.expert=1"]),
        (
            "tiny.any",
            ["model.num_experts=4", "model.experts_per_token=2", "parallel.tensor=2"],
            (2, 2),
            ["need it", "parallel.sequence=true"],
        ),
        (
            "tiny.any",
            ["parallel.pipeline=2", "parallel.interleave=2", "train.global_batch=12"],
            (2, 2),
            ["3 forward passes a training step do not divide by pipeline 2", "interleave=1"],
        ),
    ],
)
def test_wrong_layouts_name_the_nearest_valid(
    name: str, words: list[str], ranks: tuple[int, int], parts: list[str]
) -> None:
    line = error(named(name, *words), *ranks)
    assert [part for part in parts if part not in line] == []


@settings(max_examples=80, deadline=None)
@given(
    tensor=st.integers(1, 9),
    pipeline=st.integers(1, 9),
    interleave=st.integers(1, 3),
    micro=st.integers(1, 5),
    batch=st.integers(1, 70),
    nodes=st.integers(1, 6),
    per_node=st.sampled_from([1, 2, 4, 8]),
)
def test_what_is_suggested_is_valid(  # noqa: PLR0917  (one dimension of a layout each)
    tensor: int, pipeline: int, interleave: int, micro: int, batch: int, nodes: int, per_node: int
) -> None:
    words = [
        f"parallel.tensor={tensor}",
        f"parallel.pipeline={pipeline}",
        f"parallel.interleave={interleave}",
        f"train.micro_batch={micro}",
        f"train.global_batch={batch}",
    ]
    conf = config(*words)
    ranks = M.layout.Ranks(nodes * per_node, per_node)
    suggested = M.layout.nearest(conf, ranks)
    if M.layout.fits(conf, ranks):
        parallel = conf.parallel
        data = M.layout.data_parallel(conf, ranks)
        assert parallel.tensor * parallel.pipeline * parallel.context * data == ranks.total
        assert M.layout.accumulation(conf, ranks) * micro * data == batch
        return
    assume(suggested)
    for words_of_one in suggested:
        M.layout.check(config(*words, *words_of_one.split()), ranks)


def test_memory_follows_from_the_layout() -> None:
    base = M.memory.estimate(named("7b.p5"), 8)
    more = M.memory.estimate(named("7b.p5"), 64)
    assert (base.weights, base.gradients) == (more.weights, more.gradients)
    assert base.optimizer == pytest.approx(8 * more.optimizer)
    weights = 6_738_415_616 / 2  # tensor 2; norms are not split, which is nothing
    assert base.weights == pytest.approx(2 * weights, rel=1e-3)
    full = M.memory.estimate(named("7b.p5", "train.recompute=full"), 8)
    assert full.activations < base.activations / 5
    context = M.memory.estimate(named("7b.p5", "parallel.context=2"), 8)
    assert context.activations == pytest.approx(base.activations / 2)


def test_flops_are_those_of_the_other_recipe() -> None:
    other = load_recipe("llama2_fsdp", "config")
    for size in PUBLISHED:
        shape = other.config.load(ROOT / "recipes" / "llama2_fsdp", [f"model.size={size}"]).model
        kv_dim = shape.num_kv_heads * shape.head_dim
        block = 2 * shape.dim**2 + 2 * shape.dim * kv_dim + 3 * shape.dim * shape.ffn_dim
        matrices = shape.num_layers * block + shape.vocab_size * shape.dim
        want = 6 * matrices + 12 * shape.num_layers * shape.dim * 4096
        assert M.memory.flops_per_token(named(f"{size}.p5").model, 4096) == want


def run_check(*words: str) -> tuple[int, str, str]:
    command = [sys.executable, str(RECIPE / "train.py"), *words]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )
    return done.returncode, done.stdout, done.stderr


def test_check_says_what_a_layout_comes_to_and_loads_no_torch() -> None:
    words = ("--check", "nodes=4", "--", "model.size=70b", "parallel.machine=p5")
    code, out, err = run_check(*words)
    assert (code, err) == (0, "")
    assert (
        "68,976,648,192 parameters on 32 ranks = tensor 8 x pipeline 4 x context 1 x data 1" in out
    )
    assert "usable: 72 GiB of 80" in out
    code, out, err = run_check("--check", "nodes=3", "--", *words[3:])
    assert (code, out) == (78, "")
    assert "nearest valid: 32 ranks as it is" in err
    assert run_check("--check", "nodse=3")[0] == 64


def test_distance_is_zero_only_for_the_same() -> None:
    conf = named("7b.p5")
    assert M.layout._distance(conf, conf) == 0
    assert math.isfinite(M.layout._distance(conf, named("70b.p4d")))
