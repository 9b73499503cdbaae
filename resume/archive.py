"""The last tier: checkpoints as objects, each file read back before its manifest is written.

    <url>/<run>/step_00000500/model.bin      the files of a checkpoint
    <url>/<run>/step_00000500/manifest.json  written last, deleted first: then it is there

What an object store is stands in `ObjectStore`; s3.py is the only one, and the only file that
imports a client library, where an archive is configured and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Protocol

from muster.errors import ConfigError
from resume.checkpoint import (
    MANIFEST,
    check_manifest,
    step_name,
    step_of,
    verify,
)
from resume.durable import fsync_dir, write_json

_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[^?#@]*)?")


class ArchiveError(Exception):
    """The object store refused, or is not there; no word of it is a secret."""


class ObjectStore(Protocol):
    """Objects below one URL, named by relative paths.

    Every method raises ArchiveError when the store refuses or does not answer.
    """

    def put(self, name: str, path: Path) -> None:
        """Store a file."""

    def put_bytes(self, name: str, content: bytes) -> None:
        """Store a small object."""

    def get(self, name: str, path: Path) -> None:
        """Write an object into a file."""

    def get_bytes(self, name: str) -> bytes:
        """A small object; empty when there is none."""

    def digest(self, name: str) -> str:
        """SHA-256 of what the store holds, read from it; empty when there is nothing."""

    def names(self, prefix: str) -> list[str]:
        """Names of all objects below a prefix."""

    def delete(self, names: list[str]) -> None:
        """Delete objects; those that are not there count as deleted."""


def open_store(url: str, endpoint: Optional[str]) -> ObjectStore:
    """The object store behind a URL.

    Raises:
        ConfigError: no s3:// URL, or the client library is missing.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError("site.yaml: archive.url", f"'{url}' is no s3:// URL", "s3://bucket/path")
    try:
        from resume.s3 import S3Store  # noqa: PLC0415  (only where it is configured)
    except ImportError as error:
        what = f"the archive needs boto3: {error}"
        fix = "python3 -m pip install boto3 for the python3 that runs muster"
        raise ConfigError("site.yaml: archive.url", what, fix) from error
    return S3Store(match[1], (match[2] or "").strip("/"), endpoint)


@dataclass(frozen=True)
class Archive:
    """Checkpoints of one run in an object store."""

    store: ObjectStore

    def steps(self) -> set[int]:
        """Training steps whose manifest is there."""
        names = [name.split("/") for name in self.store.names("")]
        return {step_of(n[0]) for n in names if len(n) == 2 and n[1] == MANIFEST and _is_step(n[0])}

    def put(self, path: Path) -> int:
        """Copy a published checkpoint; returns its bytes. It counts once all was read back.

        Files that are there already, of a copy that was interrupted, are only read.

        Raises:
            ArchiveError: the store refused, or what it holds is not what was sent.
            OSError: the checkpoint cannot be read.
        """
        manifest = (path / MANIFEST).read_bytes()
        body, problems = check_manifest(manifest, path.name)
        if body is None:
            raise ArchiveError(f"{path.name}: {problems[0]}")
        if self.store.get_bytes(f"{path.name}/{MANIFEST}") not in (b"", manifest):
            self.store.delete([f"{path.name}/{MANIFEST}"])  # of before a rollback: files change now
        for name, fact in body["files"].items():
            where = f"{path.name}/{name}"
            if self.store.digest(where) == fact["sha256"]:
                continue
            self.store.put(where, path / name)
            if self.store.digest(where) != fact["sha256"]:
                raise ArchiveError(f"{where} is not what was sent")
        self.store.put_bytes(f"{path.name}/{MANIFEST}", manifest)
        if self.store.get_bytes(f"{path.name}/{MANIFEST}") != manifest:
            raise ArchiveError(f"{path.name}/{MANIFEST} is not what was sent")
        return sum(int(fact["bytes"]) for fact in body["files"].values())

    def get(self, step: int, folder: Path) -> list[str]:
        """Bring a checkpoint back under its name; problems, empty when it is there and verified.

        Raises:
            ArchiveError: the store refused.
            OSError: it cannot be written.
        """
        name = step_name(step)
        text = self.store.get_bytes(f"{name}/{MANIFEST}")
        body, problems = check_manifest(text, name)
        if body is None:
            return problems
        draft = folder / f"{name}.fetch.tmp"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file in body["files"]:
            target = draft / file
            if not target.resolve().is_relative_to(draft.resolve()):
                return [f"{file} leads out of the checkpoint"]
            target.parent.mkdir(parents=True, exist_ok=True)
            self.store.get(f"{name}/{file}", target)
            with target.open("rb") as written:
                os.fsync(written.fileno())
        (draft / MANIFEST).write_bytes(text)
        problems = verify(draft)
        if problems:
            shutil.rmtree(draft, ignore_errors=True)
            return problems
        fsync_dir(draft)
        draft.rename(folder / name)
        fsync_dir(folder)
        return []

    def delete(self, step: int) -> None:
        """Its manifest goes first: half a checkpoint never looks like one."""
        name = step_name(step)
        self.store.delete([f"{name}/{MANIFEST}"])
        self.store.delete(self.store.names(f"{name}/"))


def _is_step(name: str) -> bool:
    try:
        return step_name(step_of(name)) == name
    except ValueError:
        return False


def run_url(site_url: str, run_dir: Path, recipe: str, job: str) -> str:
    """Where the checkpoints of a run are; decided once and kept in RUN_DIR/archive.json.

    Readable, and never that of another run: jobs of two clusters may have one number.
    """
    file = run_dir / "archive.json"
    known = known_url(file)
    if known is not None:
        return known
    url = f"{site_url.rstrip('/')}/{recipe}/{job}-{os.urandom(4).hex()}"
    write_json(file, {"url": url})
    return url


def known_url(file: Path) -> Optional[str]:
    """What archive.json says; None: nothing."""
    try:
        value: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    url = value.get("url") if isinstance(value, dict) else None
    return url if isinstance(url, str) else None
