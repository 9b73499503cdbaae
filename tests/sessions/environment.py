"""Python environments of the sessions, below .nox: made once, kept up to date, never half made.

Whatever needs torch shares one environment, `cpu`: five copies of a gigabyte would be slow and say
nothing more. An extra of pyproject.toml whose pins cannot live with the others' has a file of its
own in constraints/, and so an environment of its own under the same name.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parents[2]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Environment:
    """One environment: `constraints/NAME.txt` pins it, `.nox/NAME` holds it."""

    name: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return ROOT / ".nox" / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def pins(self) -> Path:
        """The exact versions of what is in it."""
        return ROOT / "constraints" / f"{self.name}.txt"

    def run(self, session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
        """Run its python, which is also the first one on PATH; make it first if need be."""
        self.make(session)
        path = f"{self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        everywhere = {"PATH": path, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": str(self.folder)}
        session.run(str(self.python), *arguments, external=True, env=everywhere | (env or {}))

    def pip(self, session: nox.Session, *arguments: str) -> None:
        """Install within the pinned versions."""
        command = (str(self.python), "-m", "pip", "install", "-q", "--retries", "1")
        session.run(*command, "-c", str(self.pins), *arguments, external=True)

    def make(self, session: nox.Session) -> None:
        """Make it, or bring it up to date, if what it should hold has changed.

        A stamp, removed before the first change and written after the last, says what is in it.
        Without a stamp somebody interrupted this, and it is made anew. The lock is for two sessions
        at once.
        """
        wanted = requirements(self.name)
        digest = hashlib.sha256(json.dumps([wanted, self.pins.read_text()]).encode()).hexdigest()
        version = f"python {platform.python_version()}\n"
        self.folder.parent.mkdir(exist_ok=True)
        with self.folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stamp = self.folder / "muster.stamp"
            present = stamp.read_text() if stamp.is_file() and self.python.exists() else ""
            if present == version + digest:
                return
            session.log(f"installing into .nox/{self.name}: minutes the first time")
            stamp.unlink(missing_ok=True)
            if not present.startswith(version):
                create = ("-m", "virtualenv", "-q", "--clear", str(self.folder))
                session.run(sys.executable, *create, external=True)
            # Alone, so that only torch is looked up in the second index: an ordinary torch is five
            # times as large. Where that index cannot be reached, the first one's is taken.
            self.pip(session, "--no-deps", "--extra-index-url", TORCH_CPU_INDEX, "torch")
            self.pip(session, *wanted)
            stamp.write_text(version + digest)


def alone() -> set[str]:
    """Extras that have an environment of their own; a recipe's is named after the recipe."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return {path.stem for path in (ROOT / "constraints").glob("*.txt")} & extras.keys()


def belongs_here(recipe: str) -> bool:
    """Whether the environment of this interpreter is the one of a recipe."""
    here = Path(sys.prefix).name
    return (recipe if recipe in alone() else "cpu") == (here if here in alone() else "cpu")


def by_environment(words: list[str]) -> dict[str, list[str]]:
    """{environment: its command line}, each with its own recipes; all, if no recipe is named."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--recipe", action="append", default=[])
    named, others = parser.parse_known_args(words)
    if not named.recipe:
        only_shown = {"-h", "--help", "--list"} & set(others)
        return dict.fromkeys((CPU.name, *([] if only_shown else sorted(alone()))), others)
    mine: dict[str, list[str]] = {}
    for recipe in named.recipe:
        home = recipe if recipe in alone() else CPU.name
        mine.setdefault(home, []).extend(["--recipe", recipe])
    return {home: [*recipes, *others] for home, recipes in mine.items()}


def requirements(name: str) -> list[str]:
    """What an environment holds: the project's own needs and those of its extras."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    mine = [name, "dev"] if name in alone() else sorted(extras.keys() - alone())
    return sorted({*project["dependencies"], *(line for extra in mine for line in extras[extra])})


CPU = Environment("cpu")
