"""Packs our packages into one executable zip file: dist/muster.pyz, and what created machines get.

The same bytes for the same Python, whatever dates and modes the files have.
"""

from __future__ import annotations

import py_compile
import shutil
import tempfile
import zipfile
from pathlib import Path

PACKAGES = ("muster", "healthcheck", "lifecycle", "resume", "slurm")
SETTINGS = ("containers/docker", "containers/enroot")
"""What steps install besides our packages."""
_WITH_PROGRAMS = ("slurm", *SETTINGS)
"""Programs that others run: Slurm and Enroot; those of muster alone need a checkout."""
START = "import sys\n\nfrom muster.cli import main\n\nsys.exit(main())\n"
# A zip file knows no date before this one; one fixed date makes the archive reproducible.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def gather(checkout: Path, folder: Path) -> None:
    """Copy what goes into the archive, but PyYAML, into a folder that is not there yet."""
    for part in (*PACKAGES, *SETTINGS):
        ignored = shutil.ignore_patterns("__pycache__", "examples")
        shutil.copytree(checkout / part, folder / part, ignore=ignored)
    (folder / "__main__.py").write_text(START)


def make(checkout: Path, archive: Path) -> None:
    """The archive of a checkout, with the PyYAML of this Python where there is no other in it."""
    import yaml  # noqa: PLC0415 - whoever only wants `pack` may have none

    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        gather(checkout, parts)
        vendored = parts / "muster" / "_vendor" / "yaml"
        if not vendored.exists():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(Path(yaml.__file__).parent, vendored, ignore=ignored)
        pack(parts, archive)


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
    programs = [folder / part for part in _WITH_PROGRAMS]
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file()
        and (path.suffix not in unwanted or any(at in path.parents for at in programs))
    )
    with archive.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(files):
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_EPOCH)
                entry.external_attr = 0o100644 << 16
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    archive.chmod(0o755)
