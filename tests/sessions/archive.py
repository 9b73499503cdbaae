"""dist/muster.pyz, the one file that is installed on a node: the same bytes for the same Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

from muster.cluster.archive import PACKAGES, gather, pack
from tests.sessions.environment import CPU, ROOT

__all__ = ["PACKAGES", "build", "pack"]


def build(session: nox.Session) -> Path:
    """Make it, and see it start with nothing but itself."""
    folder, archive = ROOT / "build" / "pyz", ROOT / "dist" / "muster.pyz"
    shutil.rmtree(folder, ignore_errors=True)
    CPU.make(session)
    gather(ROOT, folder)
    # In a place apart: a recipe that has us on its PYTHONPATH keeps its own yaml.
    vendored = ("--no-deps", "--no-compile", "pyyaml")
    CPU.pip(session, "--target", f"{folder}/muster/_vendor", *vendored)
    archive.parent.mkdir(exist_ok=True)
    pack(folder, archive)
    # -I -S: neither this folder nor any installed package may help.
    session.run("python3", "-I", "-S", str(archive), "--help", external=True, silent=True)
    return archive
