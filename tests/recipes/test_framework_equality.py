"""One model in all frameworks: from one initial state the same curve as transformers', and back.

Each recipe, discovered, starts from one folder in Hugging Face's format and trains as its smoke
does. Its first loss, its curve over 20 training steps and its loss on held-out samples are compared
with those that transformers' own Llama and torch's AdamW reach in a plain loop, which stand in
tests/golden/framework_equality.json; then its last checkpoint is exported and transformers must
agree about the loss. docs/reference/framework_equality.md has the tolerances. To record the plain
loop again after an intended change:

    MUSTER_RECORD_GOLDEN=1 python -m pytest tests/recipes/test_framework_equality.py -k plain_loop
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.recipe import load_recipe
from tests.recipes.conftest import WHOLE_IN_CI
from tests.sessions.environment import belongs_here

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("recipes/*/recipe.yaml"))
STATED = {f: json.loads((ROOT / "tests/golden" / f"{f.name}.json").read_text()) for f in FOLDERS}
# One that is not compared has null there, and the page says why. ./run recipes and frameworks have
# what CI leaves out.
ROWS = [
    pytest.param(f, id=f.name, marks=() if f.name == WHOLE_IN_CI else (pytest.mark.slow,))
    for f in FOLDERS
    if belongs_here(f.name) and STATED[f]["equality"] is not None
]
GOLDEN = ROOT / "tests" / "golden" / "framework_equality.json"
SEED, STEPS, HELD_OUT = 7, 20, 6


@pytest.fixture(scope="module")
def start(fsdp: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Prepared data, and one initial state in a folder of Hugging Face's format."""
    place = tmp_path_factory.mktemp("one model")
    recipe = ROOT / "recipes" / "llama2_fsdp"
    command = [sys.executable, str(recipe / "prepare.py"), "--out", str(place / "data")]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    config = fsdp.config.load(recipe, [f"data.dir={place / 'data'}"])
    model = fsdp.model.Llama(config.model, config.train.seq_len)
    fsdp.model.init_weights(model, SEED)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    fsdp.hf_weights.write_weights(
        place / "hf",
        config.model,
        lambda names: {name: weights[name] for name in names},
        torch.float32,
        shard_bytes=1 << 20,  # several files, as real weights have
    )
    samples = fsdp.data.open_samples(config.data, (place,), config.train.seq_len, HELD_OUT)
    return SimpleNamespace(folder=place / "hf", data=place / "data", samples=samples)


def mean_loss(model: Any, samples: Any, ids: list[int]) -> Any:
    tokens = torch.from_numpy(samples.fetch(ids))
    logits = model(tokens[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def held_out(model: Any, samples: Any) -> float:
    with torch.no_grad():
        return float(mean_loss(model, samples, samples.eval_ids(range(HELD_OUT))))


def test_the_plain_loop_of_transformers_is_the_golden_curve(start: SimpleNamespace) -> None:
    """Nothing of a recipe but the order of samples: model, optimizer and rate are written anew."""
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(start.folder).float()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-5,
    )
    losses = []
    for step in range(1, STEPS + 1):
        down = (1 + math.cos(math.pi * max(0, step - 10) / (STEPS - 10))) / 2
        rate = 2e-3 * min(step / 10, 0.1 + 0.9 * down)
        for group in optimizer.param_groups:
            group["lr"] = rate
        places = range((step - 1) * 16, step * 16)
        loss = mean_loss(model, start.samples, start.samples.order(places, 0))
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = {"loss": losses, "held_out": held_out(model, start.samples)}
    if os.environ.get("MUSTER_RECORD_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert found["loss"] == pytest.approx(golden["loss"], rel=1e-4)
    assert found["held_out"] == pytest.approx(golden["held_out"], rel=1e-4)
    assert losses[-1] < losses[0] - 1


def need(recipe: Path) -> dict[str, Any]:
    """What tests/golden says about a recipe; skipped where its libraries are not."""
    golden: dict[str, Any] = STATED[recipe]
    for module in golden["needs"]:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module} is not installed. Fix: ./run tests")
    return golden


@pytest.mark.parametrize("recipe", ROWS)
def test_a_recipe_follows_transformers_and_they_read_what_it_exports(
    recipe: Path, start: SimpleNamespace, launch_warm: Any, tmp_path: Path
) -> None:
    mine = need(recipe)
    smoke = load_recipe(recipe).smoke
    words = (
        *smoke.overrides, f"train.steps={STEPS}", f"train.init={start.folder}",
        f"data.dir={start.data}", f"checkpoint.every={STEPS}", f"eval.every={STEPS}",
        f"eval.samples={HELD_OUT}", "log.tensorboard=false", "dist.timeout_s=300",
    )  # fmt: skip
    ranks = launch_warm(recipe, tmp_path, smoke.ranks, *words)
    assert ranks.codes() == [0] * smoke.ranks, ranks.errors()
    golden, limits = json.loads(GOLDEN.read_text()), mine["equality"]
    metrics = ranks.metrics()
    losses = [metrics[step]["loss"] for step in range(1, STEPS + 1)]
    off = [abs(got / want - 1) for got, want in zip(losses, golden["loss"], strict=True)]
    print(f"{recipe.name}: first {off[0]:.1e}, curve {max(off):.1e}")  # for the page
    assert losses[0] == pytest.approx(golden["loss"][0], abs=limits["first"])
    assert max(off) <= limits["curve"]
    evaluated = metrics[STEPS]["eval_loss"]
    assert evaluated == pytest.approx(golden["held_out"], rel=limits["curve"])

    transformers = pytest.importorskip("transformers")
    checkpoint = ranks.run_dir / "checkpoints" / f"step_{STEPS:08d}"
    command = [sys.executable, str(recipe / "export.py"), str(checkpoint), str(tmp_path / "hf")]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    environment["PYTHONWARNINGS"] = "ignore"  # what libraries say while torch imports them
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "hf").float()
    assert held_out(model, start.samples) == pytest.approx(evaluated, rel=2e-6)


@pytest.mark.parametrize("recipe", ROWS)
def test_weights_of_another_shape_are_one_line_before_training(
    recipe: Path, start: SimpleNamespace, launch_warm: Any, tmp_path: Path
) -> None:
    need(recipe)
    words = (f"train.init={start.folder}", f"data.dir={start.data}", "model.ffn_dim=384")
    ranks = launch_warm(recipe, tmp_path, 2, *words, "train.steps=1")
    assert ranks.codes() == [78, 78]
    (line,) = "".join(ranks.errors()).splitlines()
    assert f"{start.folder}/config.json: intermediate_size is 352" in line
    assert "Fix: give model.ffn_dim=352" in line
    assert ranks.metrics() == {}
