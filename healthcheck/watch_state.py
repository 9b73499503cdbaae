"""The memory of `muster watch`: one small file, and a lock that lets only one watch have it.

A record is on disk before its action begins, so that a watch that was killed never replaces a node
twice. The lock is the kernel's, so it cannot be left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from healthcheck.job_rules import JobRecord
from healthcheck.watch_records import Phase, Record, after_restart
from muster.errors import CreateError, DataError, StorageError, TemporaryError
from muster.ordinary import require_ordinary


def default_path() -> Path:
    """The state file of this host."""
    return Path(os.environ.get("MUSTER_STATE_DIR") or "/var/lib/muster") / "watch.json"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the state file against a second watch.

    Raises:
        TemporaryError: another watch runs.
        CreateError: the folder cannot be written, or something else than a file is there.
    """
    fix = "name another file: --state"
    require_ordinary(path, fix)
    for beside in (jobs_path(path), recounts_path(path)):
        require_ordinary(beside, fix)
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+")
    except OSError as error:
        raise CreateError(str(lock), str(error.strerror), fix) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise TemporaryError(
                str(path), f"another watch has it (process {file.read().strip()})",
                "stop that one, or name another file: --state",
            ) from None  # fmt: skip
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def load(path: Path) -> dict[str, Record]:
    """The records of the last watch; empty without a file.

    Raises:
        DataError: the file is damaged. It is not guessed at: a forgotten record could mean a
            second replacement.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    try:
        nodes = json.loads(text)["nodes"]
        return {name: after_restart(_record(values)) for name, values in nodes.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def jobs_path(path: Path) -> Path:
    """Where records of jobs are, beside those of nodes."""
    return path.with_name(f"{path.stem}_jobs{path.suffix}")


def load_jobs(path: Path) -> dict[str, JobRecord]:
    """The records of jobs of the last watch; empty without a file.

    Raises:
        DataError: the file is damaged.
    """
    path = jobs_path(path)
    try:
        jobs = json.loads(path.read_text())["jobs"]
        return {job: _job_record(values) for job, values in jobs.items()}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def recounts_path(path: Path) -> Path:
    """Where the times of recounts are, beside the records of nodes."""
    return path.with_name(f"{path.stem}_recounts{path.suffix}")


def load_recounts(path: Path) -> tuple[float, ...]:
    """When the last watch let Slurm count devices anew; empty without a file.

    Raises:
        DataError: the file is damaged.
    """
    path = recounts_path(path)
    try:
        return tuple(map(float, json.loads(path.read_text())["done_at"]))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _job_record(values: dict[str, Any]) -> JobRecord:
    cured, cured_at = tuple(values["cured"]), tuple(map(float, values["cured_at"]))
    return JobRecord(**{**values, "cured": cured, "cured_at": cured_at})


def _record(values: dict[str, Any]) -> Record:
    record = Record(**values)
    if record.phase not in get_args(Phase):
        raise ValueError(f"unknown phase {record.phase!r}")
    if not all(isinstance(t, (int, float)) for t in (record.since, record.began, record.failures)):
        raise ValueError("a time is not a number")
    return record


def _damaged(path: Path, error: Exception) -> DataError:
    fix = "see 'sinfo -R' for what is under way, then delete the file"
    return DataError(str(path), f"is damaged ({error})", fix)


def save(path: Path, records: Mapping[str, Record]) -> None:
    """Replace the file; either the old or the new text is there, whatever happens.

    Raises:
        StorageError: it cannot be written; then nothing may be done to a node either.
    """
    _write(path, {"nodes": {name: asdict(r) for name, r in records.items()}})


def save_jobs(path: Path, records: Mapping[str, JobRecord]) -> None:
    """Replace the file of jobs, likewise.

    Raises:
        StorageError: it cannot be written; then nothing may be done to a job either.
    """
    _write(jobs_path(path), {"jobs": {job: asdict(r) for job, r in records.items()}})


def save_recounts(path: Path, done_at: tuple[float, ...]) -> None:
    """Replace the file of recounts, likewise.

    Raises:
        StorageError: it cannot be written; then nothing may be counted anew either.
    """
    _write(recounts_path(path), {"done_at": done_at})


def _write(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1)
    draft = path.with_name(path.name + ".tmp")
    try:
        with draft.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise StorageError(str(path), str(error.strerror), "make room, or --state FILE") from error
