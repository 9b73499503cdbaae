"""Which files of the repository are bash, and the tools that look at them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parents[2]
SHELL_TOOLS = {"shellcheck": "shellcheck", "shfmt": "shfmt"}


def tracked_files() -> list[str]:
    """Every file that git knows or would add."""
    listing = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in names.split("\0") if (ROOT / name).is_file())


PLANTED = "tests/data/sbatch/"
"""Batch scripts with faults in them, on purpose."""


def shell_scripts() -> list[str]:
    """Every bash file, by suffix or first line."""
    return [
        name for name in tracked_files() if not name.startswith(PLANTED) and is_shell(ROOT / name)
    ]


def batch_scripts() -> list[str]:
    """What somebody may give to sbatch."""
    return [
        name
        for name in tracked_files()
        if name.endswith(".sbatch") and not name.startswith("tests/data/")
    ]


def dockerfiles() -> list[str]:
    """What images are built from."""
    return [name for name in tracked_files() if name.endswith(".Dockerfile")]


def is_shell(path: Path) -> bool:
    """Whether a file is a shell script."""
    if path.suffix in {".py", ".md"}:
        return False
    with path.open("rb") as file:
        first = file.readline(80)
    return path.suffix in {".sh", ".bash", ".sbatch"} or first.startswith(
        (b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh")
    )


def need(session: nox.Session, programs: dict[str, str]) -> None:
    """Install what is missing if we may, {program: package}; say how otherwise."""
    if all(shutil.which(program) for program in programs):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        session.error(f"{' and '.join(programs)} are needed. Fix: install them, e.g. with apt.")
    session.run("apt-get", "-qq", "update", external=True)
    install = ("apt-get", "-qq", "install", "-y", "--no-install-recommends")
    session.run(*install, *programs.values(), external=True, silent=True)
