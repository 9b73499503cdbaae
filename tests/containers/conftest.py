"""What tests in containers share: a builder, its images, a cluster whose srun has the stand-in."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from muster.cli import main
from muster.cluster import LocalCluster, Shape
from muster.image.catalogue import load
from tests.containers.builder import (
    FIX,
    TOOLS,
    Builder,
    fetch_wheels,
    home,
    local_catalogue,
    pinned,
    run,
)
from tests.harness.fixtures import slurm_here
from tests.harness.nodes import back_to_service

__all__ = ["slurm_here"]

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "only this recipe; repeatable"
    parser.addoption("--recipe", action="append", default=[], metavar="NAME", help=text)


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """buildah with a store of its own; nothing of it stays."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {missing}. Fix: {FIX}")
    one = Builder(tmp_path_factory.mktemp("buildah"))
    one.make()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in one.environment.items():
            patch.setenv(name, value)
        yield one
        one.remove()


@pytest.fixture(scope="session")
def stub_image(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image really built from a Dockerfile, with modules that only have a name."""
    image = tmp_path_factory.mktemp("images") / "stubs.sqsh"
    words = ["image", "build", "pytorch", "--tool", "buildah", "--base", builder.with_stubs()]
    words += ["--no-packages", "--no-fabric", "--temp", str(image.parent)]
    assert main([*words, "--output", str(image)]) == 0
    return image


@dataclass
class Images:
    """Images of this repository's Dockerfiles on a base with torch; one at a time on the disk."""

    builder: Builder
    folder: Path
    catalogue: Path
    cache: Path  # of the stand-in
    base: str | None = None
    wheels: dict[str, Path] = field(default_factory=dict)

    def of(self, recipe: str) -> Path:
        """The image that a recipe runs in; built if it is not the last one that was asked for."""
        found = {r: name for name, i in load(self.catalogue)[1].images.items() for r in i.recipes}
        there = [image.stem for image in self.folder.glob("*.sqsh")]
        name = found.get(recipe) or (there or ["pytorch"])[0]  # what needs no library runs in any
        image = self.folder / f"{name}.sqsh"
        if not image.exists():
            self._forget()
            words = ["image", "build", name, "--tool", "buildah", "--base", self._base()]
            words += ["--images", str(self.catalogue), "--wheels", str(self._wheels(home(recipe)))]
            words += ["--no-fabric", "--temp", str(self.folder), "--output", str(image)]
            assert main(words) == 0
            self.builder.buildah("rmi", f"localhost/muster/{name}")
            assert main(["image", "check", str(image)]) == 0
            listing = run("unsquashfs", "-l", str(image))
            # Some packages bring wheels of their own: virtualenv those that it begins with.
            ours = re.sub(r".*/site-packages/.*\n?", "", listing)
            assert not re.search(r"muster-wheels|pip\.conf|\.whl$", ours, re.MULTILINE)
        return image

    def _base(self) -> str:
        torch = pinned("cpu")["torch"]
        self.base = self.base or self.builder.with_torch(self._wheels("cpu"), torch)
        return self.base

    def _wheels(self, environment: str) -> Path:
        if environment not in self.wheels:
            folder = self.folder / "wheels" / environment
            self.wheels[environment] = fetch_wheels(self.catalogue, environment, folder)
        return self.wheels[environment]

    def _forget(self) -> None:
        for image in self.folder.glob("*.sqsh"):
            image.unlink()
        shutil.rmtree(self.cache, ignore_errors=True)


@pytest.fixture(scope="module")
def images(
    builder: Builder, stand_in: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Images]:
    """Everything that was fetched, built and unpacked goes at the end."""
    folder = tmp_path_factory.mktemp("images")
    catalogue = local_catalogue(folder / "containers")
    yield Images(builder, folder, catalogue, stand_in)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """srun of all jobs is the stand-in; the folder where it unpacks images."""
    real, cache = shutil.which("srun"), tmp_path_factory.mktemp("unpacked") / "cache"
    path = [str(HERE), str(Path(sys.executable).parent), os.environ["PATH"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STANDIN_SRUN", str(real))
        patch.setenv("STANDIN_CACHE", str(cache))
        patch.setenv("PATH", os.pathsep.join(path))
        yield cache
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_cluster(slurm_here: None, stand_in: Path) -> Iterator[LocalCluster]:
    """One for the tests of a file: two nodes that train, and a spare."""
    # An image is built for minutes; nodes that are checked meanwhile would take the CPU from it.
    settings = (("HealthCheckInterval", "0"),)
    one = LocalCluster(f"c{os.getpid()}", Shape(nodes=3, boot_s=0.1, settings=settings))
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The same cluster; every node healthy, idle and in service again before the next test."""
    yield shared_cluster
    for state in ("RUNNING", "PENDING"):
        shared_cluster.exec(["scancel", f"--state={state}"])
    back_to_service(shared_cluster)
