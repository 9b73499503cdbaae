"""Packages made for a test: what they hold stands in for programs that no distribution has."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.private_root import PrivateRoot


def deb(folder: Path, name: str, version: str, files: Mapping[str, str], depends: str = "") -> Path:
    """Make NAME_VERSION_amd64.deb, with a machine's own architecture, in a folder.

    Args:
        folder: where it goes.
        name: of the package.
        version: of the package.
        files: {absolute path: text}; a text that begins with #! is a program.
        depends: as in its control file.
    """
    root = folder / f".{name}"
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755 if text.startswith("#!") else 0o644)
    (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (root / "DEBIAN" / "control").write_text(control(name, version, depends))
    target = folder / f"{name}_{version}_{architecture()}.deb"
    words = ["dpkg-deb", "--root-owner-group", "-b", str(root), str(target)]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    return target


def control(name: str, version: str, depends: str) -> str:
    """What a package says of itself."""
    text = f"Package: {name}\nVersion: {version}\nArchitecture: {architecture()}\n"
    text += f"Depends: {depends}\n" if depends else ""
    return f"{text}Maintainer: us\nDescription: stands in\n"


def architecture() -> str:
    """Of this machine, as dpkg calls it."""
    words = ["dpkg", "--print-architecture"]
    return subprocess.run(
        words, check=True, timeout=60, capture_output=True, text=True
    ).stdout.strip()


def repository(folder: Path, *packages: Path) -> None:
    """Make a folder a source for apt: `deb [trusted=yes] file:FOLDER ./`."""
    entries = []
    for package in packages:
        data = package.read_bytes()
        words = ["dpkg-deb", "-f", str(package)]
        said = subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout
        sums = f"Size: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        entries.append(f"{said}Filename: ./{package.name}\n{sums}")
    (folder / "Packages").write_text("\n".join(entries))


def download(archives: Path, *names: str) -> None:
    """Put real packages, with what they need, where the apt of a machine without network looks."""
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    options = (
        "-d",
        "-y",
        "-q",
        "--no-install-recommends",
        "-o",
        f"Dir::Cache::archives={archives}",
    )
    words = ["apt-get", *options, "-o", "DPkg::Lock::Timeout=300", "install", *names]
    subprocess.run(words, check=True, timeout=300, capture_output=True)


def provide(machine: PrivateRoot, program: str, package: str) -> None:
    """Let a machine without network install what this machine, whose disk it has, may lack."""
    if shutil.which(program, path=machine.environment()["PATH"]) is None:
        download(machine.file("/var/cache/apt/archives"), package)


def offer(machine: PrivateRoot, *packages: Path) -> str:
    """Give a machine these packages and no other source; the commands that make it so there."""
    folder = machine.file("/srv/repo")
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        shutil.copy2(package, folder)
    repository(folder, *packages)
    lists = "rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*_*; "
    return lists + "echo 'deb [trusted=yes] file:/srv/repo ./' >/etc/apt/sources.list; "
