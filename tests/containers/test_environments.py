"""The lines of the page for a container, Docker, a virtual environment and conda, on a real Slurm.

The page's own lines are typed in a shell, with other folders. The environment is real where this
machine can have it, and else a small program that takes the real one's words and no other.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.cluster import LocalCluster, Shape
from muster.image.squash import Settings, prepare, squash
from tests.containers.small_root import make_root
from tests.harness.fixtures import slurm_here
from tests.harness.training import Training

__all__ = ["slurm_here"]
pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
TEN_LINES = HERE.parent / "data" / "recipes" / "ten_lines"
PAGE = HERE.parents[1] / "docs/how-to/use_images.md"
LIMIT_S = 1800
IMAGE = "/shared/images/pytorch-25.12-1.sqsh"


def lines() -> dict[str, str]:
    """{environment: the line} of the page."""
    table = PAGE.read_text("utf-8").partition("| environment | line |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| ([\w ]+) \| `([^`]+)` \|$", table, re.MULTILINE))


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[LocalCluster]:
    one = LocalCluster(f"e{os.getpid()}", Shape(nodes=3, boot_s=0.1))
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


def pyxis(tmp_path: Path) -> tuple[str, str]:
    """What the shell gets first, and what holds in a rank: the image's file is there."""
    for program in ("bwrap", "mksquashfs", "unsquashfs"):
        if shutil.which(program) is None:
            pytest.skip("Fix: apt-get install bubblewrap squashfs-tools")
    make_root(tmp_path / "root")
    (tmp_path / "root/in-the-image").touch()
    prepare(tmp_path / "root", Settings(["PATH=/usr/bin"]))
    squash(tmp_path / "root", tmp_path / "small.sqsh")
    first = (
        f"export STANDIN_SRUN=$(command -v srun) STANDIN_CACHE={tmp_path}/cache PATH={HERE}:$PATH"
    )
    return first, "-e /in-the-image"


def docker(_tmp_path: Path) -> tuple[str, str]:
    return f"export PATH={HERE}/fake:$PATH ONLY_OUTSIDE=1", "$IN_DOCKER$ONLY_OUTSIDE == nvcr.io/*"


def virtual_environment(tmp_path: Path) -> tuple[str, str]:
    """A real one."""
    make = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")]
    subprocess.run(make, check=True, timeout=300)
    return ":", f"$(command -v python) == {tmp_path}/env/bin/python"


def conda(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    return f"export PATH={HERE}/fake:$PATH", f"$(command -v python) == {tmp_path}/env/bin/python"


ENVIRONMENTS = {
    "container": pyxis, "Docker": docker, "virtual environment": virtual_environment,
    "conda": conda,
}  # fmt: skip


@pytest.mark.cluster
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_line_of_the_page_trains(name: str, cluster: LocalCluster, tmp_path: Path) -> None:
    recipe = Path(shutil.copytree(TEN_LINES, tmp_path / "ten_lines"))
    facts = (recipe / "recipe.yaml").read_text()
    patient = facts.replace("floor_s: 5, setup_s: 20", "floor_s: 300, setup_s: 900")
    assert patient != facts
    (recipe / "recipe.yaml").write_text(patient)  # a slow machine is no hang
    first, holds = ENVIRONMENTS[name](tmp_path)
    script = (recipe / "train.sh").read_text().splitlines()
    script[2:2] = [f"[[ {holds} && $PWD == $MUSTER_RUN_DIR/recipe ]] || exit 78"]
    (recipe / "train.sh").write_text("\n".join(script) + "\n")
    (tmp_path / "data").mkdir()
    line = lines()[name].replace("sbatch run.sbatch", "sbatch --parsable run.sbatch")
    for place, here in ((IMAGE, tmp_path / "small.sqsh"), ("/shared/data", tmp_path / "data"),
                        ("/shared/envs/torch", tmp_path / "env")):  # fmt: skip
        line = line.replace(place, str(here))
    done = cluster.exec(["bash", "-c", f"cd {recipe} && {first} && {line}"])
    assert done.rc == 0, done.err
    job = done.out.strip()
    training = Training(cluster, job, recipe / "runs" / job, recipe / f"slurm-{job}.out")
    assert training.wait_end(LIMIT_S) == "done", training.story()
    assert sorted(training.curve()) == list(range(1, 31))
    assert len(training.events("attempt_started")) == 1


def test_every_environment_of_the_page_is_tried() -> None:
    assert set(lines()) == set(ENVIRONMENTS)
