"""`muster run --image`, `muster srun --container-image` on a real Slurm: a node dies, all goes on.

A stand-in is in the place of Pyxis. The image is really built and has no framework: CI runs this.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from muster.cluster import LocalCluster
from tests.harness.training import Training, submit

TEN_LINES = Path(__file__).resolve().parents[1] / "data" / "recipes" / "ten_lines"
STEPS = 110  # rank 0 waits for nobody: it must not be done when the loss is noticed
LIMIT_S = 1800

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

# Only in the container, and with the variables of the job, does it get further than this.
INSIDE = """\
[[ -e /in-the-image && ! -e /boot && $MUSTER_RUN_DIR$PYTHONPATH != */wrong* ]] || exit 78
[[ $NVIDIA_VISIBLE_DEVICES == void || $SLURM_GPUS_ON_NODE ]] || exit 78
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The recipe of ten lines, that runs in the container only."""
    folder = Path(shutil.copytree(TEN_LINES, tmp_path / "ten_lines"))
    put_first(folder, INSIDE)
    return folder


def put_first(recipe: Path, lines: str) -> None:
    """Before what a rank does."""
    first, _, rest = (recipe / "train.sh").read_text().partition("\n")
    (recipe / "train.sh").write_text(f"{first}\n{lines}{rest}")


def lose_a_node(training: Training) -> None:
    """And see every training step all the same."""
    training.wait_step(12, timeout_s=LIMIT_S)
    training.cluster.node("kill", training.events("attempt_started")[-1]["nodes"][-1])
    assert training.wait_end(LIMIT_S) == "done", training.story()
    assert sorted(training.curve()) == list(range(1, STEPS + 1))
    assert len(training.events("attempt_started")) >= 2


def test_a_node_dies_under_a_run_in_a_container(
    stub_image: Path, cluster: LocalCluster, recipe: Path
) -> None:
    put_first(recipe, '[[ $PWD == "$MUSTER_RUN_DIR/recipe" ]] || exit 78\n')
    # The first rank on a node unpacks the image, and a slow machine is no hang.
    words = ("hang.setup_s=900", "hang.floor_s=300", "--", str(STEPS))
    lose_a_node(submit(cluster, recipe, "--image", str(stub_image), *words))


SRUN = """\
#!/usr/bin/env bash
#SBATCH --nodes=3 --ntasks-per-node=1 --gpus-per-node=8 --exclusive --no-kill --requeue
export PYXIS_CONTAINER_IMAGE={image} # for this line; the guards stay on the host all the same
exec muster srun --nodes=2 --container-mounts={folder}:{folder} --container-workdir={folder} \\
  -- bash train.sh {steps}
"""


def test_a_node_dies_under_somebodys_own_srun_line_with_a_container(
    stub_image: Path, cluster: LocalCluster, recipe: Path
) -> None:
    script = SRUN.format(image=stub_image, folder=recipe, steps=STEPS)
    (recipe / "run.sbatch").write_text(script)
    here = submit(cluster, recipe, options=[f"--chdir={recipe}"])
    lose_a_node(Training(cluster, here.job, here.run_dir / "srun_0", here.output))
