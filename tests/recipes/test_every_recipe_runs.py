"""Every recipe, discovered, as real processes: golden loss, bitwise resume, other layouts, leaving.

What differs between recipes stands in tests/golden/<recipe>.json: what must be installed, other
layouts that must follow the same curve, options that must change nothing. A recipe without one
fails here, so none can be forgotten. The words of the undisturbed run are those of `smoke` in its
recipe.yaml. CI asks one recipe for everything, the others for golden losses, resume, leaving and
errors; `./run recipes` has the rest. To record loss and samples again after an intended change of
the numbers:

    MUSTER_RECORD_GOLDEN=1 python -m pytest tests/recipes/test_every_recipe_runs.py -k smoke
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import resume
from muster.recipe import load_recipe
from tests.recipes.conftest import RECIPES, one_in_ci

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 20, 10


@dataclass(frozen=True)
class Tried:
    """A copy of a recipe outside the repository, with its data, and how it is run."""

    folder: Path
    ranks: int
    words: tuple[str, ...]
    golden: dict[str, Any]
    golden_file: Path


@pytest.fixture(scope="module", params=RECIPES)
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tried:
    source = ROOT / "recipes" / request.param
    golden_file = ROOT / "tests" / "golden" / f"{source.name}.json"
    golden = json.loads(golden_file.read_text())
    for module in golden["needs"]:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module} is not installed. Fix: ./run tests")
    folder = tmp_path_factory.mktemp("a copy") / source.name.replace("_", " ")
    ignored = shutil.ignore_patterns("data", "runs", "__pycache__")
    shutil.copytree(source, folder, ignore=ignored)
    recipe = load_recipe(folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in recipe.commands:
        if command.done_by == "exit":
            env = {**os.environ, "PATH": path}
            line = ["bash", "-c", command.run]
            subprocess.run(line, cwd=folder, env=env, check=True, timeout=300)
    assert recipe.smoke.overrides[0] == f"train.steps={STEPS}"
    words = (*recipe.smoke.overrides, f"checkpoint.every={EVERY}", "dist.timeout_s=300")
    return Tried(folder, recipe.smoke.ranks, words, golden, golden_file)


@pytest.fixture(scope="module")
def unbroken(tried: Tried, launch: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    ranks = launch(tried.folder, tmp_path_factory.mktemp("unbroken"), tried.ranks, *tried.words)
    assert ranks.codes() == [0] * tried.ranks, ranks.errors()
    return ranks


def column(ranks: Any, name: str, first: int = 1, last: int = STEPS) -> dict[int, Any]:
    return {s: m[name] for s, m in ranks.metrics().items() if first <= s <= last}


def assert_same(ranks: Any, unbroken: Any, first: int, last: int = STEPS) -> None:
    """Bit for bit: what was trained again, and what it led to."""
    for name in ("loss", "samples", "grad_norm", "lr", "tokens"):
        assert column(ranks, name, first, last) == column(unbroken, name, first, last), name
    assert sorted(column(ranks, "loss", first, last)) == list(range(first, last + 1))


def checkpoint(ranks: Any, step: int) -> str:
    return str(ranks.run_dir / "checkpoints" / f"step_{step:08d}")


def test_there_are_recipes() -> None:
    assert RECIPES


def test_smoke_ends_with_the_golden_losses(tried: Tried, unbroken: Any) -> None:
    losses, samples = column(unbroken, "loss"), column(unbroken, "samples")
    if os.environ.get("MUSTER_RECORD_GOLDEN"):
        tried.golden["loss"] = {str(s): x for s, x in losses.items()}
        tried.golden["samples"] = {str(s): x for s, x in samples.items()}
        tried.golden_file.write_text(json.dumps(tried.golden, indent=1) + "\n")
    assert {str(s): x for s, x in samples.items()} == tried.golden["samples"]
    got = {str(s): x for s, x in losses.items()}
    assert got == pytest.approx(tried.golden["loss"], rel=tried.golden["rtol"])
    assert losses[1] == pytest.approx(6.93, abs=0.05)  # ln 1024: nothing is known yet
    assert losses[STEPS] < losses[1] - 1


def test_a_run_leaves_what_the_contract_asks_for(tried: Tried, unbroken: Any) -> None:
    last = unbroken.metrics()[STEPS]
    assert last["tokens"] == STEPS * 16 * 128
    assert last["attempt"] == 1
    assert last["mfu"] is None
    assert len(last["samples"]) == 16
    assert unbroken.checkpoints() == ["step_00000010", "step_00000020"]
    for name in unbroken.checkpoints():
        assert resume.verify(unbroken.run_dir / "checkpoints" / name) == []
    done = unbroken.done()
    assert done["step"] == STEPS
    assert done["final_loss"] == last["loss"]
    assert len(done["weights"]) == 64
    for rank in range(tried.ranks):
        beat = json.loads((unbroken.run_dir / "beats" / f"rank_{rank}.json").read_text())
        assert (beat["phase"], beat["step"]) == ("save", STEPS)
    assert unbroken.errors() == [""] * tried.ranks
    assert unbroken.logs()[1:] == [""] * (tried.ranks - 1)
    if importlib.util.find_spec("tensorboard"):
        assert list((unbroken.run_dir / "tensorboard").glob("events.*"))


def test_resume_is_bitwise(tried: Tried, unbroken: Any, launch: Any, tmp_path: Path) -> None:
    more = {"MUSTER_RESUME": checkpoint(unbroken, 10), "MUSTER_ATTEMPT": "2"}
    ranks = launch(tried.folder, tmp_path, tried.ranks, *tried.words, **more)
    assert ranks.codes() == [0] * tried.ranks, ranks.errors()
    assert_same(ranks, unbroken, 11)
    assert min(ranks.metrics()) == 11
    assert ranks.done() == unbroken.done()


@one_in_ci("tried")
def test_another_layout_takes_the_same_samples_to_the_same_loss_and_back(
    tried: Tried, unbroken: Any, launch_warm: Any, tmp_path: Path
) -> None:
    for number, other in enumerate(tried.golden["layouts"]):
        words = (*tried.words, "checkpoint.every=4", *other["words"])
        start = checkpoint(unbroken, 10)
        there = launch_warm(
            tried.folder, tmp_path / f"{number}", other["ranks"], *words, MUSTER_RESUME=start
        )
        assert there.codes() == [0] * other["ranks"], there.errors()
        start = checkpoint(there, 16)
        back = launch_warm(
            tried.folder, tmp_path / f"{number}b", tried.ranks, *tried.words, MUSTER_RESUME=start
        )
        assert back.codes() == [0] * tried.ranks, back.errors()
        for ranks, first in ((there, 11), (back, 17)):
            want, got = column(unbroken, "loss", first), column(ranks, "loss")
            assert column(ranks, "samples") == column(unbroken, "samples", first)
            off = max(abs(got[step] / want[step] - 1) for step in want)
            print(f"{tried.golden_file.stem}: {off:.1e} from training step {first} on")
            assert off <= other["rtol"]


@one_in_ci("tried")
def test_one_process_starts_from_the_same_loss_and_a_broken_state_is_never_saved(
    tried: Tried, unbroken: Any, launch_warm: Any, tmp_path: Path
) -> None:
    words = (f"train.steps={STEPS}", "optim.lr=1e38", "log.tensorboard=false")
    one = launch_warm(tried.folder, tmp_path, 1, *words)
    assert one.codes() == [76]
    assert one.metrics()[1]["loss"] == pytest.approx(unbroken.metrics()[1]["loss"], rel=1e-6)
    assert one.metrics()[1]["samples"] == unbroken.metrics()[1]["samples"]
    assert "gradient norm" in one.errors()[0]
    assert one.errors()[0].count("\n") == 1
    assert one.checkpoints() == []


def test_leaving_when_asked_and_going_on(
    tried: Tried, unbroken: Any, launch_warm: Any, tmp_path: Path
) -> None:
    """SIGUSR2 to one rank: all save and leave. Goes on with options that must change nothing."""
    words = (*tried.words, "checkpoint.every=1000")
    ranks = launch_warm(tried.folder, tmp_path / "1", tried.ranks, *words)
    ranks.wait_for(lambda: len(ranks.metrics()) >= 2)
    ranks.processes[1].send_signal(signal.SIGUSR2)
    assert ranks.codes() == [0] * tried.ranks, ranks.errors()
    assert ranks.done() is None
    step = max(ranks.metrics())
    assert 2 <= step < STEPS
    assert ranks.checkpoints() == [f"step_{step:08d}"]
    assert resume.verify(Path(checkpoint(ranks, step))) == []

    more = (*words, *tried.golden["same"], "checkpoint.every=5")
    start = checkpoint(ranks, step)
    again = launch_warm(tried.folder, tmp_path / "2", tried.ranks, *more, MUSTER_RESUME=start)
    assert again.codes() == [0] * tried.ranks, again.errors()
    assert_same(again, unbroken, step + 1)
    assert again.done() == unbroken.done()
    assert resume.verify(Path(checkpoint(again, STEPS))) == []


def test_finished_but_killed_before_done(
    tried: Tried, unbroken: Any, launch_warm: Any, tmp_path: Path
) -> None:
    start = checkpoint(unbroken, STEPS)
    ranks = launch_warm(tried.folder, tmp_path, 1, f"train.steps={STEPS}", MUSTER_RESUME=start)
    assert ranks.codes() == [0], ranks.errors()
    assert ranks.done() == unbroken.done()
    assert ranks.metrics() == {}


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("data.dir=nowhere",), 65, "python prepare.py"),  # after the ranks are connected
        (("model.dim=256",), 78, "made with model.dim=128, this run has 256"),
        (("train.stepz=5",), 78, "did you mean 'train.steps'?"),  # before
        (("dist.backend=warp",), 78, "torch knows no 'warp'"),
        (("dist.plugin=no_such_module",), 78, "cannot import no_such_module"),
    ],
)
def test_errors_are_one_line(  # noqa: PLR0917  (a row of the table)
    tried: Tried, unbroken: Any, launch_warm: Any, tmp_path: Path, words: Any, code: int, part: str
) -> None:
    start = checkpoint(unbroken, 10)
    ranks = launch_warm(
        tried.folder, tmp_path, 2, f"train.steps={STEPS}", *words, MUSTER_RESUME=start
    )
    assert ranks.codes() == [code, code]
    first, second = ranks.errors()
    assert part in first
    assert first.count("\n") == 1
    assert second in ("", first)  # before they are connected, each must say it


PLUGIN = '''\
"""Registers a back end by import, as SMDDP does: gloo that leaves a note of its groups."""
import os
import torch.distributed as dist

def make(store, rank, size, timeout):
    with open(os.environ["NOTE"] + str(os.getpid()), "a") as note:
        note.write(f"{size}\\n")
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("noted", make, devices=["cpu"])
'''


@one_in_ci("tried")
def test_a_backend_that_a_plugin_registers_carries_the_collectives(
    tried: Tried, unbroken: Any, launch_warm: Any, tmp_path: Path
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "noted_backend.py").write_text(PLUGIN)
    words = (*tried.words, "train.steps=2", "dist.plugin=noted_backend", "dist.backend=noted")
    ranks = launch_warm(
        tried.folder, tmp_path / "run", tried.ranks, *words,
        PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path / 'plugins'}", NOTE=str(tmp_path / "note."),
    )  # fmt: skip
    assert ranks.codes() == [0] * tried.ranks, ranks.errors()
    # The learning rate knows the number of training steps, but is the same while it warms up.
    assert_same(ranks, unbroken, 1, 2)
    notes = [path.read_text().split() for path in tmp_path.glob("note.*")]
    assert len(notes) == tried.ranks
    assert all(str(tried.ranks) in note for note in notes)


def test_a_missing_checkpoint_is_never_a_start_from_zero(
    tried: Tried, launch_warm: Any, tmp_path: Path
) -> None:
    start = str(tmp_path / "step_00000099")
    ranks = launch_warm(tried.folder, tmp_path, 1, f"train.steps={STEPS}", MUSTER_RESUME=start)
    assert ranks.codes() == [65]
    assert ranks.errors()[0].count("\n") == 1
    assert ranks.metrics() == {}


@one_in_ci("tried")
def test_a_newer_owner_ends_this_attempt(tried: Tried, launch_warm: Any, tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text('{"token": 7}')
    words = ("train.steps=4000", "checkpoint.every=2", "dist.timeout_s=300")
    ranks = launch_warm(tried.folder, tmp_path, 2, *words, MUSTER_TOKEN="6")
    assert ranks.codes() == [75, 75]
    assert "owned by token 7" in ranks.errors()[0]
    assert "".join(ranks.errors()).count("\n") == 1
    assert not [name for name in ranks.checkpoints() if not name.endswith(".tmp")]


@one_in_ci("tried")
def test_a_full_disk_ends_all_ranks_with_74(tried: Tried, launch_warm: Any, tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root to mount a small file system")
    for number, more in enumerate(tried.golden["full_disk"]["words"]):
        small = tmp_path / str(number) / "checkpoints"
        small.mkdir(parents=True)
        size = f"size={tried.golden['full_disk']['mib']}m"  # one checkpoint, not two
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "t", small], check=True, timeout=20)
        try:
            words = ("train.steps=4000", "checkpoint.every=2", "dist.timeout_s=300", *more)
            ranks = launch_warm(tried.folder, small.parent, 2, *words)
            assert ranks.codes() == [74, 74], ranks.errors()
            assert "".join(ranks.errors()).count("\n") == 1
            assert "no space left: " in "".join(ranks.errors())  # said before anything was written
            assert ranks.checkpoints() == ["step_00000002", "step_00000004.a1.tmp"]
            assert list((small / "step_00000004.a1.tmp").iterdir()) == []
            assert resume.verify(small / "step_00000002") == []
        finally:
            subprocess.run(["umount", small], check=True, timeout=20)


@one_in_ci("tried")
def test_one_process_by_hand_with_evaluation(tried: Tried, tmp_path: Path) -> None:
    """No supervisor, no variable, another folder; the recipe imports nothing of ours but resume.

    Two corpora, with validation and without; the evaluation is the same after a resume.
    """
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "resume").symlink_to(ROOT / "resume")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "path")}
    run_dir = tmp_path / "runs" / "by_hand"

    def by_hand(file: str, *words: str, **more: str) -> None:
        result = subprocess.run(
            [sys.executable, str(tried.folder / file), *words],
            cwd=tmp_path, env={**env, **more}, capture_output=True, text=True, timeout=180,
            check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr

    corpus = sorted(str(path) for path in (tried.folder / "corpus").glob("*.xz"))
    by_hand("prepare.py", "--out", "tokens/one", "--validation=0.4", "--input", *corpus[:7])
    by_hand("prepare.py", "--out", "tokens/two", "--input", *corpus[7:])
    words = ["train.steps=4", "eval.every=2", "eval.samples=6", "train.micro_batch=4"]
    words += ["data.dir=tokens", "data.blend={one: 2, two: 1}", "checkpoint.every=2"]
    by_hand("train.py", *words)
    assert (run_dir / "DONE").exists()
    start = str(run_dir / "checkpoints" / "step_00000002")
    words += [f"data.cache={tmp_path}/cache", "data.cache_gib=0.001"]  # streamed: the same
    by_hand("train.py", *words, MUSTER_ATTEMPT="2", MUSTER_RESUME=start)
    slots = [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size > 0]
    assert 3 <= len([path for path in slots if path.is_file()]) <= 16
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 3, 4]
    assert [("eval_loss" in line) for line in lines[:4]] == [False, True, False, True]
    assert lines[3]["eval_loss"] < lines[1]["eval_loss"] < 6.95
    for key in ("loss", "samples", "eval_loss", "first_sample", "num_samples"):
        assert [line.get(key) for line in lines[4:]] == [line.get(key) for line in lines[2:4]], key
