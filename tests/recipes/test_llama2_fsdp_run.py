"""The whole recipe, as real processes: golden loss, bitwise resume, other world sizes, leaving.

To record the golden again after an intended change of the numbers:
    MUSTER_RECORD_GOLDEN=1 python -m pytest tests/recipes/test_llama2_fsdp_run.py -k golden
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import resume

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "llama2_fsdp"
GOLDEN = ROOT / "tests" / "golden" / "llama2_fsdp.json"
WORDS = ("train.steps=20", "checkpoint.every=10", "dist.timeout_s=60")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy outside the repository, with its data prepared."""
    folder = tmp_path_factory.mktemp("a copy") / "llama2 fsdp"
    ignored = shutil.ignore_patterns("data", "runs", "__pycache__")
    shutil.copytree(RECIPE, folder, ignore=ignored)
    subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def unbroken(recipe: Path, launch: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    ranks = launch(recipe, tmp_path_factory.mktemp("unbroken"), 2, *WORDS)
    assert ranks.codes() == [0, 0], ranks.errors()
    return ranks


def column(ranks: Any, name: str, first: int = 1, last: int = 20) -> dict[int, Any]:
    return {s: m[name] for s, m in ranks.metrics().items() if first <= s <= last}


def assert_same(ranks: Any, unbroken: Any, first: int, last: int = 20) -> None:
    """Bit for bit: what was trained again, and what it led to."""
    for name in ("loss", "samples", "grad_norm", "lr", "tokens"):
        assert column(ranks, name, first, last) == column(unbroken, name, first, last), name
    assert sorted(column(ranks, "loss", first, last)) == list(range(first, last + 1))


def test_loss_is_the_golden_one(unbroken: Any) -> None:
    losses, samples = column(unbroken, "loss"), column(unbroken, "samples")
    if os.environ.get("MUSTER_RECORD_GOLDEN"):
        golden = {"world_size": 2, "words": list(WORDS[:1]), "rtol": 1e-4}
        golden["loss"] = {str(s): x for s, x in losses.items()}
        golden["samples"] = {str(s): x for s, x in samples.items()}
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert {str(s): x for s, x in samples.items()} == golden["samples"]
    got = {str(s): x for s, x in losses.items()}
    assert got == pytest.approx(golden["loss"], rel=golden["rtol"])
    assert losses[1] == pytest.approx(6.93, abs=0.05)  # ln 1024: nothing is known yet
    assert losses[20] < losses[1] - 1


def test_a_run_leaves_what_the_contract_asks_for(unbroken: Any) -> None:
    last = unbroken.metrics()[20]
    assert last["tokens"] == 20 * 16 * 128
    assert last["attempt"] == 1
    assert last["mfu"] is None
    assert len(last["samples"]) == 16
    assert unbroken.checkpoints() == ["step_00000010", "step_00000020"]
    for name in unbroken.checkpoints():
        assert resume.verify(unbroken.run_dir / "checkpoints" / name) == []
    done = unbroken.done()
    assert done["step"] == 20
    assert done["final_loss"] == last["loss"]
    assert len(done["weights"]) == 64
    for rank in range(2):
        beat = json.loads((unbroken.run_dir / "beats" / f"rank_{rank}.json").read_text())
        assert (beat["phase"], beat["step"]) == ("save", 20)
    assert unbroken.errors() == ["", ""]
    assert unbroken.logs()[1] == ""
    if importlib.util.find_spec("tensorboard"):
        assert list((unbroken.run_dir / "tensorboard").glob("events.*"))


def test_resume_is_bitwise(unbroken: Any, recipe: Path, launch: Any, tmp_path: Path) -> None:
    checkpoint = unbroken.run_dir / "checkpoints" / "step_00000010"
    ranks = launch(recipe, tmp_path, 2, *WORDS, MUSTER_RESUME=str(checkpoint), MUSTER_ATTEMPT="2")
    assert ranks.codes() == [0, 0], ranks.errors()
    assert_same(ranks, unbroken, 11)
    assert min(ranks.metrics()) == 11
    assert ranks.done() == unbroken.done()


def test_other_world_sizes_take_the_same_samples_to_the_same_loss(
    unbroken: Any, recipe: Path, launch: Any, tmp_path: Path
) -> None:
    """2 ranks to 4 (two copies of two shards), and that one back to 2."""
    folder = unbroken.run_dir / "checkpoints" / "step_00000010"
    words = (*WORDS, "checkpoint.every=4", "parallel.replicate=2")
    four = launch(recipe, tmp_path / "4", 4, *words, MUSTER_RESUME=str(folder))
    assert four.codes() == [0] * 4, four.errors()
    folder = four.run_dir / "checkpoints" / "step_00000016"
    two = launch(recipe, tmp_path / "2", 2, *WORDS, MUSTER_RESUME=str(folder))
    assert two.codes() == [0, 0], two.errors()
    for ranks, first in ((four, 11), (two, 17)):
        assert column(ranks, "samples") == column(unbroken, "samples", first)
        assert column(ranks, "loss") == pytest.approx(column(unbroken, "loss", first), rel=1e-5)


def test_initial_loss_does_not_depend_on_the_world_size(
    unbroken: Any, recipe: Path, launch: Any, tmp_path: Path
) -> None:
    """One process by hand, without any variable of the contract; also holds samples out."""
    words = (*WORDS[1:], "train.steps=20", "optim.lr=1e38", "log.tensorboard=false")
    one = launch(recipe, tmp_path, 1, *words)
    assert one.codes() == [1]
    assert one.metrics()[1]["loss"] == pytest.approx(unbroken.metrics()[1]["loss"], rel=1e-6)
    assert one.metrics()[1]["samples"] == unbroken.metrics()[1]["samples"]
    assert "gradient norm" in one.errors()[0]
    assert one.errors()[0].count("\n") == 1
    assert one.checkpoints() == []  # a broken state is never saved


def test_leaving_when_asked_and_going_on(
    unbroken: Any, recipe: Path, launch: Any, tmp_path: Path
) -> None:
    """SIGUSR2 to one rank: all save and leave. Goes on with options that must change nothing."""
    words = ("train.steps=20", "checkpoint.every=1000", "dist.timeout_s=60")
    ranks = launch(recipe, tmp_path / "1", 2, *words)
    ranks.wait_for(lambda: len(ranks.metrics()) >= 2)
    ranks.processes[1].send_signal(signal.SIGUSR2)
    assert ranks.codes() == [0, 0], ranks.errors()
    assert ranks.done() is None
    step = max(ranks.metrics())
    assert 2 <= step < 20
    assert ranks.checkpoints() == [f"step_{step:08d}"]
    folder = ranks.run_dir / "checkpoints" / f"step_{step:08d}"
    assert resume.verify(folder) == []

    more = (*words, "train.recompute=full", "checkpoint.mode=process", "checkpoint.every=5")
    again = launch(recipe, tmp_path / "2", 2, *more, MUSTER_RESUME=str(folder))
    assert again.codes() == [0, 0], again.errors()
    assert_same(again, unbroken, step + 1)
    assert again.done() == unbroken.done()
    newest = again.run_dir / "checkpoints" / "step_00000020"
    assert resume.verify(newest) == []


def test_finished_but_killed_before_done(
    unbroken: Any, recipe: Path, launch: Any, tmp_path: Path
) -> None:
    folder = unbroken.run_dir / "checkpoints" / "step_00000020"
    ranks = launch(recipe, tmp_path, 1, *WORDS, MUSTER_RESUME=str(folder))
    assert ranks.codes() == [0], ranks.errors()
    assert ranks.done() == unbroken.done()
    assert ranks.metrics() == {}


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("data.dir=nowhere",), 65, "python prepare.py"),  # after the ranks are connected
        (("model.dim=256",), 78, "made with model.dim=128, this run has 256"),
        (("train.stepz=5",), 78, "did you mean 'train.steps'?"),  # before
    ],
)
def test_errors_are_one_line_of_one_rank(  # noqa: PLR0917  (a row of the table)
    unbroken: Any, recipe: Path, launch: Any, tmp_path: Path, words: Any, code: int, part: str
) -> None:
    checkpoint = unbroken.run_dir / "checkpoints" / "step_00000010"
    ranks = launch(recipe, tmp_path, 2, *WORDS, *words, MUSTER_RESUME=str(checkpoint))
    assert ranks.codes() == [code, code]
    first, second = ranks.errors()
    assert part in first
    assert first.count("\n") == 1
    assert second in ("", first)  # before they are connected, each must say it


def test_a_missing_checkpoint_is_never_a_start_from_zero(
    recipe: Path, launch: Any, tmp_path: Path
) -> None:
    ranks = launch(recipe, tmp_path, 1, *WORDS, MUSTER_RESUME=str(tmp_path / "step_00000099"))
    assert ranks.codes() == [65]
    assert "manifest.json is missing" in ranks.errors()[0]
    assert ranks.metrics() == {}


def test_a_newer_owner_ends_this_attempt(recipe: Path, launch: Any, tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text('{"token": 7}')
    words = ("train.steps=4000", "checkpoint.every=2", "dist.timeout_s=60")
    ranks = launch(recipe, tmp_path, 2, *words, MUSTER_TOKEN="6")
    assert ranks.codes() == [75, 75]
    assert "owned by token 7" in ranks.errors()[0]
    assert "".join(ranks.errors()).count("\n") == 1
    assert not [name for name in ranks.checkpoints() if not name.endswith(".tmp")]


@pytest.mark.parametrize("mode", ["thread", "sync"])
def test_a_full_disk_ends_with_the_storage_code(
    recipe: Path, launch: Any, tmp_path: Path, mode: str
) -> None:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root to mount a small file system")
    small = tmp_path / "run" / "checkpoints"
    small.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=15m", "t", small], check=True, timeout=20)
    try:
        words = ("train.steps=4000", "checkpoint.every=2", f"checkpoint.mode={mode}")
        ranks = launch(recipe, tmp_path / "run", 2, *words)  # a checkpoint has 12 MB
        assert ranks.codes() == [74, 74], ranks.errors()
        assert "".join(ranks.errors()).count("\n") == 1
        assert "No space left" in "".join(ranks.errors())
        assert ranks.checkpoints() == ["step_00000002", "step_00000004.a1.tmp"]
        assert resume.verify(small / "step_00000002") == []
    finally:
        subprocess.run(["umount", small], check=True, timeout=20)


def test_one_process_by_hand_with_evaluation(recipe: Path, tmp_path: Path) -> None:
    """No supervisor, no variable, another folder; the recipe imports nothing of ours but resume."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "resume").symlink_to(ROOT / "resume")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "path")}
    words = ["train.steps=4", "eval.every=2", "eval.samples=6", "train.micro_batch=4"]
    result = subprocess.run(
        [sys.executable, str(recipe / "train.py"), *words],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    run_dir = tmp_path / "runs" / "by_hand"
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [("eval_loss" in line) for line in lines] == [False, True, False, True]
    assert lines[3]["eval_loss"] < lines[1]["eval_loss"] < 6.95
    assert (run_dir / "DONE").exists()
