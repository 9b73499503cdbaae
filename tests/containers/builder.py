"""Images for tests without GPUs: the Dockerfiles of containers/, on a base out of this machine.

What differs from an image for GPUs is the base, and that it provides torch alone: the packages of
images.yaml are really installed by packages.sh, in its versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from muster.image.build import WHEELS
from muster.image.catalogue import load
from tests.containers.small_root import make_root
from tests.sessions.environment import TORCH_CPU_INDEX, Environment, alone

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("buildah", "mksquashfs", "unsquashfs", "bwrap")
FIX = "apt-get install buildah squashfs-tools bubblewrap"
LIMIT_S = 1800


def run(*argv: str, env: dict[str, str] | None = None) -> str:
    """What a program prints; its errors, if it fails, are the test's."""
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Builder:
    """A store of buildah's own in a folder, and what is built with it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes buildah use it, as root without a daemon, in a container too."""
        return {
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }

    def make(self) -> None:
        """The store; an overlay where this file system can carry one, which is ten times faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for driver in ("overlay", "vfs"):
            folders = f'runroot = "{self.folder}/run"\ngraphroot = "{self.folder}/graph"\n'
            text = f'[storage]\ndriver = "{driver}"\n{folders}'
            (self.folder / "storage.conf").write_text(text)
            done = subprocess.run(
                ["buildah", "info"], env={**os.environ, **self.environment},
                capture_output=True, text=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
            if done.returncode == 0:
                return
            shutil.rmtree(self.folder / "graph", ignore_errors=True)
        raise AssertionError(done.stderr)

    def buildah(self, *words: str) -> str:
        """One command of buildah."""
        return run("buildah", *words, env={**os.environ, **self.environment})

    def small(self, name: str, root: Path, *variables: str) -> str:
        """The name of a base out of a root file system, which is taken away."""
        container = self.buildah("from", "scratch")
        self.buildah("copy", "--quiet", container, str(root), "/")
        for variable in ("PATH=/usr/local/bin:/usr/bin:/bin", *variables):
            self.buildah("config", "--env", variable, container)
        self.buildah("commit", "--rm", "--quiet", container, name)
        shutil.rmtree(root)
        return name

    def with_stubs(self) -> str:
        """A base with modules in place of the frameworks, and variables that must not win."""
        root = self.folder / "stubs"
        make_root(root)
        (root / "in-the-image").touch()
        wrong = ("MUSTER_RUN_DIR=/wrong", "PYTHONPATH=/wrong")
        return self.small("localhost/stubs", root, *wrong)

    def with_torch(self, wheels: Path, torch: str) -> str:
        """A base that has pip and this torch; all images share its layers."""
        root, name = self.folder / "small", "localhost/torch"
        make_root(root, stubs=False)
        small = self.small("localhost/small", root)
        self.buildah(
            *("build", "--format", "docker", "--pull-never", "--volume", f"{wheels}:{WHEELS}:ro"),
            *("--build-arg", f"BASE_IMAGE={small}", "--build-arg", f"PROVIDES=torch=={torch}"),
            *("--file", str(ROOT / "tests/containers/base.Dockerfile"), "--tag", name),
            str(self.folder / "run"),
        )
        return name

    def remove(self) -> None:
        """Take everything away, so that nothing stays mounted."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")


def pinned(environment: str) -> dict[str, str]:
    """{package: version} of constraints/NAME.txt, for this Python."""
    text = Environment(environment).pins.read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wanted = [one for one in map(Requirement, lines) if not one.marker or one.marker.evaluate()]
    return {one.name: str(one.specifier).removeprefix("==") for one in wanted}


def home(recipe: str) -> str:
    """The environment that a recipe's libraries live in, outside."""
    return recipe if recipe in alone() else "cpu"


def local_catalogue(folder: Path) -> Path:
    """images.yaml with its Dockerfiles beside it, for a base that provides torch for CPUs."""
    shutil.copytree(ROOT / "containers", folder, dirs_exist_ok=True)
    path = folder / "images.yaml"
    said = yaml.safe_load(path.read_text("utf-8"))
    for image in said["images"].values():
        pins = pinned(home(image["recipes"][0]))
        image["provides"] = {"torch": pins["torch"]}
        image["packages"] = {"numpy": pins["numpy"], **image["packages"]}
    path.write_text(yaml.safe_dump(said, sort_keys=False), "utf-8")
    return path


def fetch_wheels(catalogue: Path, environment: str, folder: Path) -> Path:
    """Wheels of all that the images of one environment need, by this machine's pip.

    It asks the index that this machine is set up for; nothing of that gets into an image.
    """
    images = load(catalogue)[1].images.values()
    mine = [image for image in images if home(image.recipes[0]) == environment]
    packages = {
        name: v for image in mine for name, v in [*image.provides.items(), *image.packages.items()]
    }
    outside = pinned(environment)
    more = {name: v for name, v in packages.items() if Requirement(name).name not in outside}
    both = [f"{name}=={v}" for name, v in packages.items() if name not in more]
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder))
    links = ("--find-links", str(folder))
    pins = ("-c", str(Environment(environment).pins), *links)
    # As in an environment: only torch is looked up in the second index.
    run(*pip, *pins, "--no-deps", "--extra-index-url", TORCH_CPU_INDEX, "torch")
    run(*pip, *pins, "pip", *both)
    if more:  # not within pins: those of an environment are no promise about what is not in it
        run(*pip, *links, *(f"{name}=={v}" for name, v in more.items()))
    return folder
