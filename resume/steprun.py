"""One `srun --auto-resume=1` line of a batch script as a run of its own: its recipe, its RUN_DIR.

After a requeue Slurm starts the script from its first line. A line is known again by its words and
its place among equal ones, so that a finished one is not run again and the interrupted one goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from muster.errors import CreateError, UsageError
from muster.recipe import Budget, Command, Recipe
from resume.step import Step


def as_recipe(step: Step) -> Recipe:
    """A recipe of one command. Its program is tried again after a failure only if it got further.

    That is HyperPod's rule (a fault of the software ends the job), less strict where metrics.jsonl
    shows progress. Lost nodes are no fault of the program, so they cost little of the budget.
    """
    return Recipe(
        name="srun",
        summary=step.program,
        nodes=step.nodes,
        commands=[Command("srun", step.program, done_by="exit")],
        ranks_per_node=step.ranks_per_node,
        budget=Budget(same_place=1, retry_blind=False),
    )


@contextlib.contextmanager
def claim(step: Step, job: str, restart: int, environment: Mapping[str, str]) -> Iterator[Path]:
    """RUN_DIR of this line, held as long as the context.

    Raises:
        UsageError: another such line of the same job is running, or has this RUN_DIR.
        CreateError: the folder cannot be written.
    """
    named = environment.get("MUSTER_RUN_DIR")
    with contextlib.ExitStack() as held:
        try:
            folder = Path(named) if named else _job_folder(step, job, restart, environment)
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((folder / "srun.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run_dir = folder if named else _line_folder(folder, step, restart)
        except BlockingIOError as error:
            what = "another step of this job is kept going by muster at this moment"
            fix = "start one after the other, or start both in one srun"
            raise UsageError(f"job {job}", what, fix) from error
        except OSError as error:
            what = f"RUN_DIR cannot be written: {error.strerror}"
            fix = "start it in a shared folder that you may write, or name one in MUSTER_RUN_DIR"
            raise CreateError(str(error.filename or step.folder), what, fix) from error
        yield run_dir.absolute()


def _job_folder(step: Step, job: str, restart: int, environment: Mapping[str, str]) -> Path:
    """runs/<job> where the step runs; runs/<job>-2 where another cluster had that job number."""
    script = _script_id(environment)
    number, found = 1, step.folder / "runs" / job
    while found.exists():
        if _text(found / "script") == script:
            return found  # an earlier line of the same script
        number += 1
        following = found.with_name(f"{job}-{number}")
        if restart > 0 and not following.exists():
            return found  # this job's earlier start made it last
        found = following
    found.mkdir(parents=True)
    (found / "script").write_text(script, encoding="utf-8")
    return found


def _script_id(environment: Mapping[str, str]) -> str:
    """Tells one start of a batch script from every other."""
    boot = _text(Path("/proc/sys/kernel/random/boot_id")) or ""
    return f"{boot.strip()} {environment.get('SLURM_TASK_PID') or os.getsid(0)}"


def _line_folder(folder: Path, step: Step, restart: int) -> Path:
    """The first RUN_DIR of the same words that this start of the script has not used, or a new one.

    srun_0, srun_1, ... in the order in which the lines were first run.
    """
    words = json.dumps([*step.options, "--", step.program])
    number = 0
    while (found := folder / f"srun_{number}").exists():
        if _text(found / "line") == words and _create(found / f"start_{restart}"):
            return found
        number += 1
    found.mkdir()
    (found / "line").write_text(words, encoding="utf-8")
    _create(found / f"start_{restart}")
    return found


def _create(path: Path) -> bool:
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
