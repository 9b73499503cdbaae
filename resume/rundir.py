"""RUN_DIR: where it is, what is in it at the start, and the snapshot of the recipe.

A run trains from the snapshot, so that editing the recipe while it runs cannot make attempt 2 a
different program from attempt 1. A new job on an old RUN_DIR takes a new snapshot: that is how a
fix gets in. The old one is kept beside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Callable, Optional

from muster.errors import CreateError, StorageError
from resume.durable import write_whole
from resume.lease import read_owner

_NOT_COPIED = ("runs", "data", "__pycache__", ".git")


def default_run_dir(recipe_dir: Path, job: str, restart: int) -> Path:
    """<recipe>/runs/<job>; with a suffix where a cluster has given the same job number before."""
    runs = recipe_dir / "runs"
    taken = 1
    while (runs / _name(job, taken)).exists():
        taken += 1
    if taken > 1 and restart > 0:
        taken -= 1  # the same job again
    return runs / _name(job, taken)


def _name(job: str, number: int) -> str:
    return job if number == 1 else f"{job}-{number}"


def prepare(run_dir: Path) -> str:
    """Create RUN_DIR, prove that it is writable, return the nonce that other nodes must see.

    Raises:
        CreateError: it cannot be created or written.
        StorageError: the disk is full.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "logs").mkdir(exist_ok=True)
        # Once and for all: a second job that is refused must not confuse the guards of the first.
        nonce = _text(run_dir / "nonce") or uuid.uuid4().hex
        write_whole(run_dir / "nonce", nonce)
        _check_journal(run_dir / "journal.jsonl")
    except OSError as error:
        raise _explained(run_dir, error) from error
    return nonce


def _check_journal(path: Path) -> None:
    """Appended to once, nothing, so that a journal that cannot be written is said at the start.

    Raises:
        CreateError: something else stands in its place.
        OSError: it cannot be opened.
    """
    if path.exists() and not path.is_file():
        raise CreateError(str(path), "is no file", "move it away; it is the memory of the run")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644))


def _explained(run_dir: Path, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            str(run_dir), f"{error.strerror}", "free space there, or give another --run-dir"
        )
    return CreateError(
        str(run_dir),
        f"RUN_DIR cannot be written: {error.strerror}",
        "give --run-dir on a shared file system that you may write",
    )


def snapshot(recipe_dir: Path, run_dir: Path, job: str) -> Path:
    """Copy the recipe into RUN_DIR/recipe, once per job; returns the copy.

    Raises:
        CreateError: it cannot be read or written.
        StorageError: the disk is full.
    """
    target, marker = run_dir / "recipe", run_dir / "recipe.job"
    taken = snapshot_of(run_dir, job)
    if taken is not None:
        return taken
    partial = run_dir / "recipe.tmp"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        ignore = _ignore(recipe_dir, run_dir)
        # A dangling link is an editor's lock more often than a part of the recipe.
        shutil.copytree(recipe_dir, partial, ignore=ignore, ignore_dangling_symlinks=True)
        if target.exists():
            target.rename(_free_name(run_dir))
        partial.rename(target)
        write_whole(marker, job)
    except shutil.Error as error:  # an OSError too, so it comes first
        raise _not_copied(run_dir, error) from error
    except OSError as error:
        raise _explained(run_dir, error) from error
    return target


def hand_over(run_dir: Path, job: str, successor: str) -> None:
    """The successor of a job trains from the same snapshot: nobody has asked for another."""
    if snapshot_of(run_dir, job) is not None:
        write_whole(run_dir / "recipe.job", successor)


def snapshot_of(run_dir: Path, job: str) -> Optional[Path]:
    """The snapshot that an earlier start of this job has taken; None: there is none."""
    taken = run_dir / "recipe"
    same = taken.is_dir() and _text(run_dir / "recipe.job") == job
    return taken if same and read_owner(run_dir) is not None else None


def _not_copied(run_dir: Path, error: shutil.Error) -> Exception:
    """The first of copytree's failures, which it hands over as (source, target, text)."""
    source, _, why = error.args[0][0]
    for number in (errno.ENOSPC, errno.EDQUOT):
        if f"[Errno {number}]" in str(why):
            return _explained(run_dir, OSError(number, os.strerror(number)))
    return CreateError(str(source), f"cannot be copied: {why}", "make it readable or move it away")


def _ignore(recipe_dir: Path, run_dir: Path) -> Callable[[str, list[str]], set[str]]:
    """What the snapshot leaves out; the folder of a run in it would be copied into itself."""

    def ignore(folder: str, names: list[str]) -> set[str]:
        top = Path(folder) == recipe_dir
        left_out = {n for n in names if n == "__pycache__" or (top and n in _NOT_COPIED)}
        return left_out | {n for n in names if _is_run_dir(Path(folder, n), run_dir)}

    return ignore


def _is_run_dir(path: Path, run_dir: Path) -> bool:
    return path == run_dir or (path / "owner.json").exists()


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _free_name(run_dir: Path) -> Path:
    number = 1
    while (path := run_dir / f"recipe.{number}").exists():
        number += 1
    return path


def forget_beats(job: str, tokens: Iterable[int]) -> None:
    """Remove the beat folders of these tokens of a job from this node's memory."""
    wanted = {f"{job}.{token}" for token in tokens}
    with contextlib.suppress(OSError):
        for path in list(beat_dir(job, 0, 0).parent.iterdir()):
            if path.name.rpartition(".")[0] in wanted:
                shutil.rmtree(path, ignore_errors=True)
            elif ".".join(path.name.split(".")[:2]) in wanted:
                path.unlink()  # the mark of a guard


def beat_dir(job: str, token: int, attempt: int) -> Path:
    """Where ranks show life: memory of each node, private to the user."""
    memory = Path("/dev/shm")  # noqa: S108  (created 0700 by the guard)
    return memory / f"muster-{os.getuid()}" / f"{job}.{token}.{attempt}"
