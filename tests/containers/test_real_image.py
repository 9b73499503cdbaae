"""An image really built from our Dockerfile, squashed, checked and started: buildah, no network.

The base is small, with modules in place of the frameworks that only have a name. What the
Dockerfile does to a base is real.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from muster.cli import main
from muster.image.catalogue import load
from muster.image.squash import Settings, prepare, squash
from tests.containers.builder import Builder

LIMIT_S = 300


def test_from_the_dockerfile_to_a_container_that_starts(
    stub_image: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "check", str(stub_image)]) == 0, capfd.readouterr().out
    root = tmp_path / "unpacked"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", str(root), str(stub_image)], check=True)
    torch = load()[1].images["pytorch"].provides["torch"]
    assert (root / "etc" / "resolv.conf").read_text() == ""  # of this machine: not to be in it
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


def test_the_same_root_gives_the_same_bytes(builder: Builder, tmp_path: Path) -> None:
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
