"""Checkpoints that are complete and verified, or do not exist.

torch.distributed.checkpoint loads a shard with a flipped bit without a word, and a folder that was
written twice may mix two states. So a checkpoint is written under a temporary name that belongs to
one attempt, every rank seals its own files with size and SHA-256, and one rename publishes; what is
published is never written again. A reader trusts only what it has verified.

    checkpoints/step_00000500.a3.tmp/   being written by attempt 3
    checkpoints/step_00000500/          published: shards + manifest.json
    checkpoints/step_00000500.bad1/     did not verify; set aside, never deleted by muster

Standard library only: recipes import it through `resume`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import shutil
import stat
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from resume.durable import fsync_dir, fsync_file, json_text, read_json, write_json
from resume.hashed_file import HashedFile

MANIFEST = "manifest.json"
_PUBLISHED = re.compile(r"step_(\d{8,})")
_ANY = re.compile(r"step_(\d{8,})(\..*)?")
_DRAFT = re.compile(r"step_\d{8,}\.a(\d+)\.tmp")
_READ_BYTES = 4 << 20
# The file server is away, or we are out of something: the bytes may be good all the same.
_TROUBLE = (
    *(errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ETIMEDOUT, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.ECONNRESET, errno.EAGAIN, errno.EINTR, errno.EMFILE),
    *(errno.ENFILE, errno.ENOMEM),
)


class CheckpointError(Exception):
    """A checkpoint could not be written."""


class Fenced(CheckpointError):  # noqa: N818  (the field says "fenced", not "fenced error")
    """Another supervisor owns this run now; this attempt must stop and change nothing."""


class StorageError(CheckpointError):
    """The storage refused: full, read-only, input/output error. The node is not to blame."""


def step_name(step: int) -> str:
    """Name of the folder of a training step; sorts by step, not by time of writing."""
    return f"step_{step:08d}"


def digest_file(path: Path) -> str:
    """SHA-256 of a file, as lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _digest_body(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class CheckpointDraft:
    """A checkpoint being written: the same object on every rank, safe in a background thread.

    Order of calls: write files into `dir`; `seal` on every rank; `publish` on every rank (rank 0
    acts, the others return at once).
    """

    checkpoints_dir: Path
    step: int
    attempt: int
    rank: int
    world_size: int
    token: int
    owner_file: Path
    keep: int = 3
    hashed: dict[Path, HashedFile] = field(default_factory=dict, compare=False)  # by this process

    @property
    def dir(self) -> Path:
        """The folder to write into; it belongs to this attempt alone."""
        return self.checkpoints_dir / f"{step_name(self.step)}.a{self.attempt}.tmp"

    @property
    def published(self) -> Path:
        """Where the checkpoint stands once published."""
        return self.checkpoints_dir / step_name(self.step)

    def open(self, name: str) -> HashedFile:
        """A new file of this draft that is hashed while it is written, for `seal`.

        Raises:
            OSError: it cannot be created.
        """
        path = self.dir / name
        self.hashed[path] = HashedFile(path)
        return self.hashed[path]

    def _seal_file(self, rank: int) -> Path:
        return self.dir / f"seal_rank_{rank:05d}.json"

    def seal(self, files: Iterable[Path]) -> None:
        """Record size and SHA-256 of the files that this rank wrote, after forcing them to disk.

        Args:
            files: paths inside `dir`, relative to it or absolute. May be empty.

        Raises:
            StorageError: the disk is full or failed.
        """
        try:
            sealed = {}
            for file in files:
                path = file if file.is_absolute() else self.dir / file
                self._refuse_unverifiable(path)
                sealed[path.relative_to(self.dir).as_posix()] = self._fact(path)
            fsync_dir(self.dir)
            write_json(self._seal_file(self.rank), sealed)
        except OSError as error:
            raise StorageError(f"checkpoint {self.dir.name}: {error}") from error

    def _fact(self, path: Path) -> dict[str, Any]:
        """Size and checksum of a file that is on the disk."""
        hashed = self.hashed.get(path)
        if hashed is not None and hashed.still_is(path):
            return {"bytes": path.stat().st_size, "sha256": hashed.sha256}
        fsync_file(path)
        return {"bytes": path.stat().st_size, "sha256": digest_file(path)}

    def publish(self, meta: Optional[dict[str, Any]] = None, timeout_s: float = 600.0) -> None:
        """Wait for the seals of all ranks, write the manifest, rename, prune. Rank 0 acts.

        Args:
            meta: facts that a loader compares before it loads (shapes, consumed samples, ...).
            timeout_s: longest wait for the other ranks.

        Raises:
            Fenced: a newer supervisor owns the run.
            StorageError: the disk is full or failed.
            CheckpointError: a rank did not seal in time.
        """
        if self.rank != 0:
            return
        body = {
            "step": self.step,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "files": self._collect_seals(time.monotonic() + timeout_s),
            "meta": json.loads(json.dumps(meta or {})),  # as a reader gets it: {1: 2} is {"1": 2}
        }
        if self.published.exists():  # written once; and only now no rank writes to the draft
            shutil.rmtree(self.dir, ignore_errors=True)
            return
        self._refuse_unsealed(body["files"])
        try:
            for rank in range(self.world_size):
                self._seal_file(rank).unlink()
            write_json(self.dir / MANIFEST, {"body": body, "sha256": _digest_body(body)})
            check_token(self.owner_file, self.token, self.attempt)
            self.dir.rename(self.published)
            fsync_dir(self.checkpoints_dir)
        except OSError as error:
            raise StorageError(f"checkpoint {self.dir.name}: {error}") from error
        prune(self.checkpoints_dir, self.keep)

    def _refuse_unverifiable(self, path: Path) -> None:
        """What no reader would accept must not be published: it would be found out too late."""
        if path in (self.dir / MANIFEST, self._seal_file(self.rank)):
            raise CheckpointError(f"checkpoint {self.dir.name}: {path.name} is a name of ours")
        if path.is_symlink():
            raise CheckpointError(f"checkpoint {self.dir.name}: {path.name} is a link, no file")

    def _refuse_unsealed(self, sealed: dict[str, Any]) -> None:
        """A file that no rank sealed would make the checkpoint one that never verifies."""
        seals = {self._seal_file(rank).name for rank in range(self.world_size)}
        unsealed = set(_sizes(self.dir)) - set(sealed) - seals
        if unsealed:
            raise CheckpointError(f"checkpoint {self.dir.name}: not sealed: {sorted(unsealed)}")

    def _collect_seals(self, deadline: float) -> dict[str, Any]:
        """Seals of all ranks, once the files they name are visible here with their full size."""
        while True:
            files: dict[str, Any] = {}
            waiting = []
            for rank in range(self.world_size):
                seal = read_json(self._seal_file(rank))
                if seal is None or not all(_has_size(self.dir / n, f) for n, f in seal.items()):
                    waiting.append(rank)
                else:
                    files.update(seal)
            if not waiting:
                return files
            if time.monotonic() > deadline:
                raise CheckpointError(f"checkpoint {self.dir.name}: no seal from ranks {waiting}")
            time.sleep(0.02)


def _has_size(path: Path, fact: dict[str, Any]) -> bool:
    try:
        return bool(path.stat().st_size == fact["bytes"])
    except OSError:
        return False


def check_token(owner_file: Path, token: int, attempt: Optional[int] = None) -> None:
    """Raise Fenced when the run has a newer owner than the holder of this token, or attempt."""
    owner = read_json(owner_file)
    if owner is None:
        return
    if int(owner["token"]) > token:
        raise Fenced(f"run is owned by token {owner['token']}, this attempt has {token}")
    newest = int(owner.get("attempt", 0)) if int(owner["token"]) == token else 0
    if attempt is not None and newest > attempt:
        raise Fenced(f"attempt {newest} has begun, this is {attempt}")


def _published(checkpoints_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of all published checkpoints, newest step first; file times do not matter."""
    if not checkpoints_dir.is_dir():
        return []
    found = []
    for path in checkpoints_dir.iterdir():
        match = _PUBLISHED.fullmatch(path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def read_manifest(path: Path) -> tuple[Optional[dict[str, Any]], list[str]]:
    """(body, problems) of a published checkpoint's manifest; body is None when it is unusable."""
    try:
        text = (path / MANIFEST).read_bytes().decode()
        manifest = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        _refuse_trouble(error)
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("body"), dict):
        return None, [f"{MANIFEST} is missing or unreadable"]
    body: dict[str, Any] = manifest["body"]
    # Byte for byte what was written: a blank that has become another byte is damage too.
    if manifest.get("sha256") != _digest_body(body) or text != json_text(manifest):
        return None, [f"{MANIFEST} does not match its own digest"]
    match = _ANY.fullmatch(path.name)
    if match and int(match[1]) != body["step"]:
        return None, [f"{MANIFEST} is of training step {body['step']}"]
    return body, []


def verify(path: Path, *, contents: bool = True, part: tuple[int, int] = (0, 1)) -> list[str]:
    """Problems of a published checkpoint; an empty list means it is good.

    Args:
        path: the checkpoint's folder.
        contents: also read every byte and compare checksums; False compares names and sizes.
        part: (i, n) reads only every n-th file, so that n nodes share the reading.
    """
    body, problems = read_manifest(path)
    if body is None:
        return problems
    files: dict[str, Any] = body["files"]
    sizes = _sizes(path)
    for name, fact in files.items():
        if name not in sizes:
            problems.append(f"{name} is missing")
        elif sizes[name] is None:
            problems.append(f"{name} is no regular file")
        elif sizes[name] != fact["bytes"]:
            problems.append(f"{name} has {sizes[name]} bytes instead of {fact['bytes']}")
    problems += [f"{name} is not sealed" for name in sorted(set(sizes) - set(files) - {MANIFEST})]
    if problems or not contents:
        return problems
    mine = sorted(files)[part[0] :: part[1]]
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = pool.map(lambda name: _digest_or_error(path / name), mine)
        for name, digest in zip(mine, digests):
            if isinstance(digest, OSError):
                _refuse_trouble(digest)
                problems.append(f"{name} cannot be read: {digest.strerror}")
            elif digest != files[name]["sha256"]:
                problems.append(f"{name} does not match its checksum")
    return problems


def _refuse_trouble(error: Exception) -> None:
    """Raise what says nothing about the checkpoint: it must not be set aside for it."""
    if isinstance(error, OSError) and error.errno in _TROUBLE:
        raise error


def _sizes(folder: Path) -> dict[str, Optional[int]]:
    """{name: bytes} of all but folders; None for a link, whose content belongs to somebody else."""
    sizes: dict[str, Optional[int]] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone, or unreadable: missing
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                regular = stat.S_ISREG(status.st_mode)
                sizes[path.relative_to(folder).as_posix()] = status.st_size if regular else None
    return sizes


def _digest_or_error(path: Path) -> Union[str, OSError]:
    try:
        return digest_file(path)
    except OSError as error:
        return error


@dataclass(frozen=True)
class Picked:
    """The checkpoint to resume from, and what had to be set aside to get there."""

    path: Optional[Path]
    step: int  # 0 when there is none
    set_aside: list[tuple[str, list[str]]] = field(default_factory=list)
    ever_existed: bool = False

    @property
    def lost(self) -> bool:
        """Checkpoints existed, none verifies: starting from zero would hide the loss."""
        return self.path is None and self.ever_existed


def pick(checkpoints_dir: Path) -> Picked:
    """The newest checkpoint that verifies; bad ones are renamed aside, never deleted.

    Only the owner of the run may call this: it changes names.
    """
    aside: list[tuple[str, list[str]]] = []
    for step, path in _published(checkpoints_dir):
        problems = verify(path)
        if not problems:
            return Picked(path, step, aside, ever_existed=True)
        _set_aside(path)
        aside.append((path.name, problems))
    return Picked(None, 0, aside, ever_existed=_any_evidence(checkpoints_dir))


def _any_evidence(checkpoints_dir: Path) -> bool:
    """Whether a checkpoint was ever published here, good or bad."""
    if not checkpoints_dir.is_dir():
        return False
    return any(
        _ANY.fullmatch(p.name) and not _DRAFT.fullmatch(p.name) for p in checkpoints_dir.iterdir()
    )


def _set_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.bad{number}")).exists():
        number += 1
    path.rename(aside)
    fsync_dir(path.parent)


def discard_drafts(checkpoints_dir: Path, before_attempt: int) -> list[str]:
    """Delete what earlier attempts left half written; returns the names.

    Only the owner of the run may call this, after the ranks of those attempts are gone.
    """
    gone = []
    if checkpoints_dir.is_dir():
        for path in checkpoints_dir.iterdir():
            match = _DRAFT.fullmatch(path.name)
            half_deleted = path.name.endswith(".deleting")
            if half_deleted or (match and int(match[1]) < before_attempt):
                shutil.rmtree(path, ignore_errors=True)
                gone.append(path.name)
    return gone


def prune(checkpoints_dir: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints whose names and sizes are right.

    A checkpoint that is not right counts for nothing: it neither fills a place nor is deleted, so
    the last good one can never be pruned in favour of bad newer ones.
    """
    good = [path for _, path in _published(checkpoints_dir) if not verify(path, contents=False)]
    for path in good[max(keep, 1) :]:
        doomed = path.with_name(f"{path.name}.deleting")
        path.rename(doomed)  # first the name goes: a half deleted folder never looks published
        shutil.rmtree(doomed, ignore_errors=True)
