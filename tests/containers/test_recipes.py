"""Every recipe in the image of its Dockerfile, on a real Slurm: the losses of outside.

Every smoke, as exact as its golden file asks; and bit for bit, a lost node. `./run containers
--recipe NAME` runs both of one recipe. The order of parameters is that of images: only one of them
is on the disk at a time.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from muster.cluster import LocalCluster
from muster.recipe import load_recipe
from tests.containers.builder import ROOT
from tests.faults.twin import EVERY, RANKS, Twin
from tests.harness.training import Training, submit
from tests.sessions.environment import belongs_here

if TYPE_CHECKING:
    from tests.containers.conftest import Images

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.torch]

PLACES = ("tests/data/recipes/ten_lines", "recipes/*")
FOLDERS = {
    path.parent.name: path.parent
    for place in PLACES
    for path in sorted(ROOT.glob(f"{place}/recipe.yaml"))
}
STEPS, LOST_AT = 30, 12
LIMIT_S = 1800
PATIENCE = ("hang.floor_s=300", "hang.setup_s=900")  # a slow machine is no hang


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named: list[str] = metafunc.config.getoption("--recipe", default=[])
    if unknown := sorted(set(named) - set(FOLDERS)):
        raise pytest.UsageError(f"--recipe {unknown[0]}: there are {', '.join(FOLDERS)}")
    names = named or list(FOLDERS)
    if metafunc.function is test_smoke_in_its_container_has_the_losses_of_outside:
        names = [name for name in names if load_recipe(FOLDERS[name]).smoke.overrides]
    metafunc.parametrize("name", names, scope="module")


@pytest.fixture
def copy(name: str, tmp_path: Path) -> Path:
    """The recipe as its user copies it; nothing in it knows of containers, or of this test."""
    ignored = shutil.ignore_patterns("data", "runs", "__pycache__")
    return Path(shutil.copytree(FOLDERS[name], tmp_path / name, ignore=ignored))


def trained(run: Training) -> Training:
    """The run, once it has come to its end."""
    assert run.wait_end(LIMIT_S) == "done", run.story()
    return run


def result(run: Training) -> tuple[dict[int, tuple[float, str]], Any]:
    """Every loss, every sample, and the final weights."""
    return run.curve(), json.loads((run.run_dir / "DONE").read_text())


def test_smoke_in_its_container_has_the_losses_of_outside(
    name: str, copy: Path, images: Images, cluster: LocalCluster
) -> None:
    smoke = load_recipe(copy).smoke
    golden = json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())
    sizes = [word.partition("=")[2] for word in smoke.overrides if "parallel.tensor=" in word]
    each = max(smoke.ranks // 2, *map(int, sizes), 1)  # tensor parallel ranks share a node
    shape = (f"nodes={smoke.ranks // each}", f"ranks_per_node={each}")
    words = ["--image", str(images.of(name)), *PATIENCE, *shape]
    run = trained(submit(cluster, copy, *words, "--", *smoke.overrides, "checkpoint.every=10"))
    curve = run.curve()
    assert {str(step): samples for step, (_, samples) in curve.items()} == golden["samples"]
    losses = {str(step): loss for step, (loss, _) in curve.items()}
    assert losses == pytest.approx(golden["loss"], rel=golden["rtol"])
    assert run.events("incident") == []


def test_a_node_dies_and_nothing_differs_from_an_undisturbed_run_outside(
    name: str, copy: Path, images: Images, cluster: LocalCluster
) -> None:
    recipe = load_recipe(copy)
    # Where ranks wait for nobody, rank 0 goes on until the loss is noticed: it must not be done.
    steps = STEPS if recipe.smoke.overrides else recipe.rehearsal.steps
    twin = Twin(copy, steps, tuple(recipe.rehearsal.overrides), is_python=True)
    words = [*PATIENCE, "--", *twin.training(RANKS)]
    inside = ["--image", str(images.of(name))]
    # Where the libraries are not installed here, the undisturbed run is in the container too.
    where = [] if belongs_here(name) else inside
    calm = trained(submit(cluster, copy, *where, *words))

    run = submit(cluster, copy, *inside, *words)
    run.wait_step(LOST_AT, timeout_s=LIMIT_S)
    lost = run.events("attempt_started")[-1]["nodes"][-1]
    cluster.node("kill", lost)
    trained(run)
    (incident,) = run.events("incident")
    assert (incident["cause"], incident["node"]) == ("node_lost", lost)
    after = run.events("attempt_started")[-1]
    assert after["resume_step"] >= incident["last_step"] - 2 * EVERY
    assert sorted(run.curve()) == list(range(1, steps + 1))
    assert result(run) == result(calm)
