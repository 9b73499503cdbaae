"""Where the job writes what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurm.lint.finding import ERROR, WARNING, Spot, rule
from slurm.lint.script import Script

_OWN_NAME = re.compile(r"%\d*[jJA]")
_NOT_A_FILE = ("/dev/null", "none", "")


@rule(
    ERROR,
    why="""Slurm makes no folders: the job fails at once, or runs without a log, and there is no
    file that says why.""",
    fix="make the folder before you submit",
)
def log_folder(script: Script) -> Iterator[Spot]:
    """The folder of --output and --error exists."""
    for name in ("output", "error"):
        given = script.options.get(name)
        folder = Path(given.option.value).parent if given else Path()
        if given and not re.search(r"[$~`]", str(folder)) and _is_missing(script, folder):
            yield Spot(given.line, f"folder '{folder}' of --{name} does not exist")


def _is_missing(script: Script, folder: Path) -> bool:
    """Whether a folder is certainly not there; of a place on the cluster one cannot know."""
    try:
        if "%" in str(folder):
            return True
        if folder.is_absolute():
            return Path(*folder.parts[:2]).is_dir() and not folder.is_dir()
        start = script.value("chdir")
        if start and Path(start).is_absolute() and not Path(start).is_dir():
            return False
        bases = [Path(start)] if start else [script.here, script.folder]
        return not any((base / folder).is_dir() for base in bases)
    except (OSError, ValueError):  # a name that no file can have
        return True


@rule(
    WARNING,
    why="""After a requeue Slurm begins the file anew, and what the job said before it was lost,
    the reason too, is gone. None of 59 batch scripts of a well-known collection had it.""",
    fix="add '#SBATCH --open-mode=append'",
)
def open_mode(script: Script) -> Iterator[Spot]:
    """The log of a job that may be requeued is appended to."""
    if "no-requeue" in script.options or script.value("output") == "/dev/null":
        return
    given = script.options.get("open-mode")
    if given is None:
        edits = script.add_option("#SBATCH --open-mode=append")
        yield Spot(script.top, "a requeue empties the log: --open-mode is not given", edits)
    elif not given.option.value.startswith("a"):
        yield Spot(given.line, f"a requeue empties the log: --open-mode={given.option.value}")


@rule(
    WARNING,
    why="Two jobs of the same script write into the same file, or one empties the other's.",
    fix="put %j into the name (%A and %a for an array), e.g. '#SBATCH --output=%x-%j.out'",
)
def log_name(script: Script) -> Iterator[Spot]:
    """The name of a log is the job's own."""
    for name in ("output", "error"):
        given = script.options.get(name)
        if not given or given.option.value in _NOT_A_FILE or "$" in given.option.value:
            continue
        value = given.option.value
        if not _OWN_NAME.search(value):
            yield Spot(given.line, f"every job writes '{value}'")
        elif "array" in script.options and "%A" in value and "%a" not in value:
            yield Spot(given.line, f"every task of the array writes '{value}'")
