"""Damaged checkpoints on a real Slurm: never loaded, the one before is, none is no fresh start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.damage import DAMAGES
from tests.harness.training import Training, submit

if TYPE_CHECKING:
    from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster
STEPS, EVERY = 30, 5


def stopped_run(cluster: LocalCluster, recipe: Path) -> Training:
    """A run that was cancelled with three checkpoints on disk."""
    run = submit(cluster, recipe, "--", "100000")
    run.wait_step(3 * EVERY + 2)
    run.cancel()
    return run


def published(run: Training) -> list[Path]:
    """Checkpoints, newest first."""
    folders = (run.run_dir / "checkpoints").glob("step_????????")
    return sorted(folders, reverse=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_never_loaded(
    damage: str, cluster: LocalCluster, ten_lines: Path
) -> None:
    run = stopped_run(cluster, ten_lines)
    newest, before = published(run)[:2]
    DAMAGES[damage](newest)
    steps = int(before.name[5:]) + 2 * EVERY
    again = submit(cluster, ten_lines, "--", str(steps), run_dir=run.run_dir)
    assert again.wait_end() == "done", again.story()
    assert again.events("set_aside")[0]["checkpoint"] == newest.name
    assert again.events("attempt_started")[-1]["resume_step"] == int(before.name[5:])
    assert newest.with_name(f"{newest.name}.bad1").is_dir()
    assert sorted(again.curve()) == list(range(1, steps + 1))


def test_no_good_checkpoint_left_stops_the_run(cluster: LocalCluster, ten_lines: Path) -> None:
    run = stopped_run(cluster, ten_lines)
    for folder in published(run):
        DAMAGES["flipped byte"](folder)
    again = submit(cluster, ten_lines, "--", str(STEPS), run_dir=run.run_dir)
    assert again.wait_end() == "stopped", again.story()
    stop = again.events("stopped")[0]
    assert stop["exit_code"] == 65
    assert "none verifies" in stop["why"]
    assert again.state() == "FAILED"
    assert len(again.events("attempt_started")) == 1  # it did not start from zero
