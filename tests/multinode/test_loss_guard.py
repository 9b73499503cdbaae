"""Poison in the data, on a real Slurm: the run goes back, leaves it out, and can prove it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resume import audit
from tests.harness.training import submit

if TYPE_CHECKING:
    from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
POISONED = ROOT / "tests" / "data" / "recipes" / "poisoned_data" / "train.sh"
LLAMA2 = ROOT / "recipes" / "llama2_fsdp"


def test_poisoned_data_is_left_out(cluster: LocalCluster, ten_lines: Path) -> None:
    shutil.copy(POISONED, ten_lines / "train.sh")
    run = submit(cluster, ten_lines, "loss_guard.action=rollback", "--", "30")
    assert run.wait_end() == "done", run.story()
    (back,) = run.events("rolled_back")
    assert (back["cause"], back["to_step"], back["checkpoints"]) == ("diverged", 10, [])
    first, last = map(int, back["skip"].split("-"))
    assert first == 11
    assert last >= 12  # what it had reached when it was noticed
    proof = audit.read(run.run_dir)
    assert proof.problems == ()
    assert proof.skipped == ((first, last),)
    (incident,) = run.events("incident")
    assert incident["cause"] == "diverged"
    assert run.events("suspect") == []  # no node is to blame


def test_without_the_guard_it_is_a_failure_of_the_program(
    cluster: LocalCluster, ten_lines: Path
) -> None:
    script = POISONED.read_text().replace("log || exit 74", "[[ $loss != NaN ]] || exit 76; log")
    (ten_lines / "train.sh").write_text(script)
    run = submit(cluster, ten_lines, "--", "30")
    assert run.wait_end() == "stopped", run.story()
    assert [e["cause"] for e in run.events("attempt_ended")] == ["diverged", "diverged"]
    assert run.events("rolled_back") == []


@pytest.mark.torch
def test_llama2_goes_back_behind_a_loss_that_is_not_finite(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its own program, with batch 12 turned into poison."""
    ignore = shutil.ignore_patterns("runs", "data", "__pycache__")
    recipe = Path(shutil.copytree(LLAMA2, tmp_path / "recipe", ignore=ignore))
    honest = "cross_entropy(model, tokens).mean() / num_passes"
    text = (recipe / "train.py").read_text()
    assert text.count(honest) == 1
    poison = f"{honest} * (float('nan') if run.batch(step) == 12 else 1.0)"
    (recipe / "train.py").write_text(text.replace(honest, poison))
    words = ["loss_guard.action=rollback", "loss_guard.back=2"]
    options = ["train.steps=25", "checkpoint.every=5"]
    run = submit(cluster, recipe, *words, "--", *options)
    assert run.wait_end(600) == "done", run.story()
    (back,) = run.events("rolled_back")
    assert (back["cause"], back["to_step"], back["skip"]) == ("diverged", 5, "6-12")
    assert back["checkpoints"] == ["step_00000010"]
    assert (run.run_dir / "checkpoints" / "step_00000010.rolled_back1").is_dir()
    proof = audit.read(run.run_dir)
    assert proof.problems == ()
    assert (proof.skipped, proof.last_step) == (((6, 12),), 25)
