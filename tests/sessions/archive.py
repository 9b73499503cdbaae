"""dist/muster.pyz, the one file that is installed on a node: the same bytes for the same Python."""

from __future__ import annotations

import py_compile
import shutil
import zipfile
from pathlib import Path

import nox

from tests.sessions.environment import CPU, ROOT

PACKAGES = ("muster", "healthcheck", "lifecycle", "resume", "slurm")
# A zip file knows no date before this one; one fixed date makes the archive reproducible.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(session: nox.Session) -> Path:
    """Make it, and see it start with nothing but itself."""
    folder, archive = ROOT / "build" / "pyz", ROOT / "dist" / "muster.pyz"
    shutil.rmtree(folder, ignore_errors=True)
    CPU.make(session)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)
    # In a place apart: a recipe that has us on its PYTHONPATH keeps its own yaml.
    vendored = ("--no-deps", "--no-compile", "pyyaml")
    CPU.pip(session, "--target", f"{folder}/muster/_vendor", *vendored)
    start = "import sys\n\nfrom muster.cli import main\n\nsys.exit(main())\n"
    (folder / "__main__.py").write_text(start)
    archive.parent.mkdir(exist_ok=True)
    pack(folder, archive)
    # -I -S: neither this folder nor any installed package may help.
    session.run("python3", "-I", "-S", str(archive), "--help", external=True, silent=True)
    return archive


def pack(folder: Path, archive: Path) -> None:
    """Write an executable zip file that depends on nothing but the contents of `folder`.

    The standard library's zipapp would keep dates, modes and the order of the file system. PyYAML's
    compiled part stays out: it fits one version of Python, and PyYAML does without. Beside each
    module lies its code for this version of Python, which halves the start; any other version
    compiles the module itself.
    """
    unwanted = {".so", ".sh"}
    for path in [*folder.rglob("*.pyc")]:
        path.unlink()
    for path in sorted(folder.rglob("*.py")):
        if path != folder / "__main__.py":
            name = path.relative_to(folder).as_posix()
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # a date would change each time
            py_compile.compile(str(path), f"{path}c", name, doraise=True, invalidation_mode=mode)
    programs = folder / "slurm"  # of Slurm's own, which `muster slurm-conf programs` installs
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and (path.suffix not in unwanted or programs in path.parents)
    )
    with archive.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(files):
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_EPOCH)
                entry.external_attr = 0o100644 << 16
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    archive.chmod(0o755)
