"""A real file system that fills up under a run: waited for, never blamed on a node, then said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.cluster import LocalCluster, Shape
from tests.harness.training import Training, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster
TEN_LINES = Path(__file__).resolve().parents[1] / "data" / "recipes" / "ten_lines"
STEPS, EVERY, CHECKPOINT_BYTES = 40, 5, 200_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 2 MB; mounted first, so that every node of the cluster below has it."""
    folder = tmp_path_factory.mktemp("small")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "small", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, timeout=20).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


@pytest.fixture(scope="module")
def cluster(slurm_here: None, small: Path) -> Iterator[LocalCluster]:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    one = LocalCluster(f"full{os.getpid()}", Shape(nodes=4, boot_s=0.2))
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The bash recipe, with checkpoints of 200 kB."""
    folder = Path(shutil.copytree(TEN_LINES, tmp_path / "recipe"))
    script = (folder / "train.sh").read_text()
    larger = f'save() {{ {{ echo "$step"; head -c {CHECKPOINT_BYTES} /dev/zero; }} >step'
    assert 'save() { echo "$step" >step' in script
    script = script.replace('save() { echo "$step" >step', larger)
    script = script.replace('step=$(<"$MUSTER_RESUME/step")', 'read -r step <"$MUSTER_RESUME/step"')
    (folder / "train.sh").write_text(script)
    return folder


def start(cluster: LocalCluster, recipe: Path, small: Path, *words: str) -> tuple[Training, Path]:
    """A run in the small file system, and the ballast that fills it up for the next save."""
    run_dir = small / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run = submit(cluster, recipe, *words, "--", str(STEPS), run_dir=run_dir)
    run.wait_event("checkpoint_verified", 1)
    ballast = small / "ballast"
    status = os.statvfs(small)
    ballast.write_bytes(b"x" * (status.f_bavail * status.f_frsize - CHECKPOINT_BYTES // 2))
    return run, ballast


def assert_no_node_is_blamed(run: Training) -> None:
    assert {e["cause"] for e in run.events("incident")} == {"storage"}, run.story()
    assert all(not e["unfit"] for e in run.events("gate"))


def test_a_full_disk_is_waited_for(cluster: LocalCluster, recipe: Path, small: Path) -> None:
    run, ballast = start(cluster, recipe, small)
    incident = run.wait_event("incident")
    assert incident["cause"] == "storage"
    run.wait("a look at the disk", lambda: "no space left" in run.output.read_text())
    ballast.unlink()
    assert run.wait_end() == "done", run.story()
    assert_no_node_is_blamed(run)
    assert sorted(run.curve()) == list(range(1, STEPS + 1))


def test_a_disk_that_stays_full_stops_the_run_with_one_line(
    cluster: LocalCluster, recipe: Path, small: Path
) -> None:
    run, ballast = start(cluster, recipe, small, "budget.storage_s=3")
    try:
        assert run.wait_end() == "stopped", run.story()
    finally:
        ballast.unlink()
    stopped = run.events("stopped")[0]
    assert stopped["exit_code"] == 74
    assert "no space left" in stopped["why"]
    assert_no_node_is_blamed(run)
    again = submit(cluster, recipe, "--", str(STEPS), run_dir=run.run_dir)
    again.wait_event("done")  # the line above is still the last one for a moment
    assert sorted(again.curve()) == list(range(1, STEPS + 1))
