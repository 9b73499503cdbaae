"""Everything this repository can do, one session each: `./run SESSION`, or `nox -s SESSION`.

Whatever needs torch shares one environment, `.nox/cpu`: five copies of a gigabyte would be slow and
say nothing more. It is made for `constraints/cpu.txt`, so a session does the same on every machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
CPU = ROOT / ".nox" / "cpu"
CPU_PYTHON = CPU / "bin" / "python"
PINS = ROOT / "constraints" / "cpu.txt"
PACKAGES = ("muster", "healthcheck", "resume")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SHELL_TOOLS = ("shellcheck", "shfmt")
# A zip file knows no date before this one; one fixed date makes the archive reproducible.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)

nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests"]


@nox.session
def demo(session: nox.Session) -> None:
    """Lose nodes under a training run on a local Slurm cluster, and watch it recover by itself."""
    # Before a minute of installing: is there a Slurm, or may we install it?
    session.run(sys.executable, "-c", "import muster.cluster.packages as p; exit(p.main())")
    run_python(session, "-m", "tests.demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run lint and every test that is not marked slow: what CI runs."""
    lint(session)
    run_python(session, "-m", "pytest", "-m", "not slow", *session.posargs)


@nox.session
def smoke(session: nox.Session) -> None:
    """Train every recipe for a few training steps on this machine, without Slurm."""
    run_python(session, "-m", "pytest", "tests/recipes", "-k", "smoke", *session.posargs)


@nox.session
def multinode(session: nox.Session) -> None:
    """Train the recipes on the local Slurm cluster while faults are injected."""
    run_python(session, "-m", "pytest", "tests/multinode", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Check every link and run the commands of README, tutorials and how-to pages."""
    run_python(session, "-m", "pytest", "tests/docs", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types of Python, style of bash, and links."""
    run_python(session, "-m", "ruff", "check", ".")
    run_python(session, "-m", "ruff", "format", "--check", ".")
    typed = [name for name in (*PACKAGES, "tests") if any((ROOT / name).rglob("*.py"))]
    run_python(session, "-m", "mypy", "noxfile.py", *typed)
    # A recipe is a folder of its own: its files import each other by their bare names.
    for recipe in sorted({path.parent for path in ROOT.glob("recipes/*/*.py")}):
        run_python(session, "-m", "mypy", str(recipe), env={"MYPYPATH": f"{recipe}:{ROOT}"})
    need_shell_tools(session)
    scripts = shell_scripts()
    session.run("shellcheck", "-x", *scripts, external=True)
    session.run("shfmt", "-i", "2", "-ci", "-d", *scripts, external=True)
    run_python(session, "-m", "pytest", "-q", "tests/docs/test_links.py")


@nox.session
def pyz(session: nox.Session) -> None:
    """Build dist/muster.pyz: the one file that is installed on a node."""
    build, archive = ROOT / "build" / "pyz", ROOT / "dist" / "muster.pyz"
    shutil.rmtree(build, ignore_errors=True)
    make_cpu_environment(session)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, build / package)
    # In a place apart: a recipe that has us on its PYTHONPATH keeps its own yaml.
    pip(session, "--target", f"{build}/muster/_vendor", "--no-deps", "--no-compile", "pyyaml")
    start = "import sys\n\nfrom muster.cli import main\n\nsys.exit(main())\n"
    (build / "__main__.py").write_text(start)
    archive.parent.mkdir(exist_ok=True)
    pack(build, archive)
    # -I -S: neither this folder nor any installed package may help.
    session.run("python3", "-I", "-S", str(archive), "--help", external=True, silent=True)
    session.log(f"{archive.relative_to(ROOT)}: {archive.stat().st_size} bytes")


def pack(folder: Path, archive: Path) -> None:
    """Write an executable zip file that depends on nothing but the contents of `folder`.

    The standard library's zipapp would keep dates, modes and the order of the file system. PyYAML's
    compiled part stays out: it fits one version of Python, and PyYAML does without.
    """
    unwanted = {".so", ".sh", ".pyc"}
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in unwanted)
    with archive.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(files):
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_EPOCH)
                entry.external_attr = 0o100644 << 16
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    archive.chmod(0o755)


def run_python(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run the shared environment's python, which is also the first one on PATH."""
    make_cpu_environment(session)
    path = f"{CPU / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    everywhere = {"PATH": path, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": str(CPU)}
    session.run(str(CPU_PYTHON), *arguments, external=True, env=everywhere | (env or {}))


def pip(session: nox.Session, *arguments: str) -> None:
    """Install within the pinned versions."""
    command = (str(CPU_PYTHON), "-m", "pip", "install", "-q", "--retries", "1", "-c", str(PINS))
    session.run(*command, *arguments, external=True)


def make_cpu_environment(session: nox.Session) -> None:
    """Make `.nox/cpu`, or bring it up to date, if what it should hold has changed.

    A stamp, removed before the first change and written after the last, says what is in it. Without
    a stamp somebody interrupted this, and it is made anew. The lock is for two sessions at once.
    """
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = project["optional-dependencies"].values()
    wanted = sorted({*project["dependencies"], *(line for extra in extras for line in extra)})
    digest = hashlib.sha256(json.dumps([wanted, PINS.read_text()]).encode()).hexdigest()
    version = f"python {platform.python_version()}\n"
    CPU.parent.mkdir(exist_ok=True)
    with (CPU.parent / "cpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = CPU / "muster.stamp"
        present = stamp.read_text() if stamp.is_file() and CPU_PYTHON.exists() else ""
        if present == version + digest:
            return
        session.log("installing into .nox/cpu: minutes the first time")
        stamp.unlink(missing_ok=True)
        if not present.startswith(version):
            create = ("-m", "virtualenv", "-q", "--clear", str(CPU))
            session.run(sys.executable, *create, external=True)
        # Alone, so that only torch is looked up in the second index: an ordinary torch is five
        # times as large. Where that index cannot be reached, the first one's is taken.
        pip(session, "--no-deps", "--extra-index-url", TORCH_CPU_INDEX, "torch")
        pip(session, *wanted)
        stamp.write_text(version + digest)


def tracked_files() -> list[str]:
    """Every file that git knows or would add."""
    listing = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in names.split("\0") if (ROOT / name).is_file())


def shell_scripts() -> list[str]:
    """Every bash file, by suffix or first line."""
    return [name for name in tracked_files() if is_shell(ROOT / name)]


def is_shell(path: Path) -> bool:
    """Whether a file is a shell script."""
    if path.suffix in {".py", ".md"}:
        return False
    with path.open("rb") as file:
        first = file.readline(80)
    return path.suffix in {".sh", ".bash", ".sbatch"} or first.startswith(
        (b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh")
    )


def need_shell_tools(session: nox.Session) -> None:
    """Install shellcheck and shfmt if we may; say how otherwise."""
    if all(shutil.which(tool) for tool in SHELL_TOOLS):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        session.error(f"{' and '.join(SHELL_TOOLS)} are needed. Fix: install them, e.g. with apt.")
    session.run("apt-get", "-qq", "update", external=True)
    session.run("apt-get", "-qq", "install", "-y", *SHELL_TOOLS, external=True, silent=True)


if __name__ == "__main__":
    nox.main()
