"""`muster run --image` on a real Slurm, with a stand-in for Pyxis: a node dies, the run goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.cluster import LocalCluster, Shape
from muster.image.squash import Settings, prepare, squash
from tests.containers.small_root import make_root
from tests.harness.fixtures import slurm_here
from tests.harness.training import submit

__all__ = ["slurm_here"]
HERE = Path(__file__).resolve().parent
TEN_LINES = HERE.parent / "data" / "recipes" / "ten_lines"

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture
def cluster(slurm_here: None) -> Iterator[LocalCluster]:
    one = LocalCluster(f"c{os.getpid()}", Shape(nodes=3, boot_s=0.1))
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


def test_a_node_dies_under_a_run_in_a_container(cluster: LocalCluster, tmp_path: Path) -> None:
    for program in ("bwrap", "mksquashfs", "unsquashfs"):
        if shutil.which(program) is None:
            pytest.skip("Fix: apt-get install bubblewrap squashfs-tools")
    root, image = tmp_path / "root", tmp_path / "small.sqsh"
    make_root(root)
    (root / "in-the-image").touch()
    prepare(root, Settings(["PATH=/usr/bin", "MUSTER_RUN_DIR=/wrong", "PYTHONPATH=/wrong"]))
    squash(root, image)
    recipe = Path(shutil.copytree(TEN_LINES, tmp_path / "ten_lines"))
    script = (recipe / "train.sh").read_text().splitlines()
    # Only in the container, and with the variables of the job, does it get further than this.
    script[2:2] = [
        '[[ -e /in-the-image && ! -e /root && $PWD == "$MUSTER_RUN_DIR/recipe" ]] || exit 78'
    ]
    script[3:3] = ["[[ $NVIDIA_VISIBLE_DEVICES == void || $SLURM_GPUS_ON_NODE ]] || exit 78"]
    (recipe / "train.sh").write_text("\n".join(script) + "\n")
    batch = (recipe / "run.sbatch").read_text()
    lines = (
        f"export STANDIN_SRUN=$(command -v srun) STANDIN_CACHE={tmp_path}/cache-$SLURMD_NODENAME\n"
        f'export PATH={HERE}:"$PATH"\n'
    )
    (recipe / "run.sbatch").write_text(batch.replace("exec muster", lines + "exec muster"))
    training = submit(cluster, recipe, "--image", str(image), "--", "60")
    training.wait_step(12)
    cluster.node("kill", training.events("attempt_started")[-1]["nodes"][-1])
    assert training.wait_end() == "done", training.story()
    assert sorted(training.curve()) == list(range(1, 61))
    assert len(training.events("attempt_started")) >= 2
