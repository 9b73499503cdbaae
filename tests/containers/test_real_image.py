"""An image really built from our Dockerfile, squashed, checked and started: buildah, no network.

The base is small, with modules in place of the frameworks that only have a name. What the
Dockerfile does to a base is real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from muster.cli import main
from muster.image.catalogue import load
from tests.containers.small_root import make_root

NEEDED = ("buildah", "mksquashfs", "unsquashfs")
LIMIT_S = 300

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _tools() -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {missing}. Fix: apt-get install buildah squashfs-tools")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A base image in a store of its own."""
    store = tmp_path / "storage.conf"
    folders = f'runroot = "{tmp_path}/run"\ngraphroot = "{tmp_path}/graph"\n'
    store.write_text(f'[storage]\ndriver = "vfs"\n{folders}')
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(store))
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    make_root(tmp_path / "root")

    def buildah(*words: str) -> str:
        done = subprocess.run(
            ["buildah", *words], capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    name = buildah("from", "scratch")
    buildah("copy", "--quiet", name, str(tmp_path / "root"), "/")
    buildah("config", "--env", "PATH=/usr/bin:/bin", name)
    buildah("commit", "--quiet", "--signature-policy", str(policy), name, "localhost/small")
    return "localhost/small"


def test_from_the_dockerfile_to_a_container_that_starts(
    base: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "pytorch.sqsh"
    words = ["image", "build", "pytorch", "--tool", "buildah", "--base", base, "--no-packages"]
    words += ["--no-fabric", "--temp", str(tmp_path), "--output", str(image)]
    assert main(words) == 0, capfd.readouterr().err
    assert main(["image", "check", str(image)]) == 0, capfd.readouterr().out

    root = tmp_path / "unpacked"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", str(root), str(image)], check=True)
    torch = load()[1].images["pytorch"].provides["torch"]
    given = (root / "etc" / "environment").read_text().splitlines()
    assert f"PYTORCH_VERSION={torch}" in given
    enter = [str(shutil.which("chroot")), "--userspec=1000:1000", str(root), "/bin/sh", "/etc/rc"]
    command = "import os, torch; print(os.getcwd(), os.environ['PYTHONNOUSERSITE'])"
    started = subprocess.run(
        [*enter, "python3", "-c", command],
        env=dict(line.partition("=")[::2] for line in given),
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert (started.returncode, started.stdout) == (0, "/workspace 1\n"), started.stderr


def test_the_same_root_gives_the_same_bytes(tmp_path: Path) -> None:
    from muster.image.squash import Settings, prepare, squash

    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "dev" / "left-out").touch()
    (root / "data").write_bytes(bytes(range(256)) * 1000)
    prepare(root, Settings())
    squash(root, tmp_path / "a.sqsh")
    squash(root, tmp_path / "b.sqsh")
    assert (tmp_path / "a.sqsh").read_bytes() == (tmp_path / "b.sqsh").read_bytes()
    listing = subprocess.run(
        ["unsquashfs", "-l", str(tmp_path / "a.sqsh")], capture_output=True, text=True, check=True
    )
    assert "squashfs-root/dev\n" in listing.stdout
    assert "left-out" not in listing.stdout
