"""Checkpoints that are complete and verified, or do not exist: what a reader does.

torch.distributed.checkpoint loads a shard with a flipped bit without a word, and a folder that was
written twice may mix two states. So a checkpoint is written under a temporary name that belongs to
one attempt (draft.py), and what is published is never written again. A reader trusts only what it
has verified.

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
import os
import re
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from resume.durable import fsync_dir, json_text, read_json
from resume.retention import doomed

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


def step_of(name: str) -> int:
    """The training step of a checkpoint's name, whatever follows it; the inverse of step_name.

    Raises:
        ValueError: no such name.
    """
    match = _ANY.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return int(match[1])


def digest_file(path: Path, *, fresh: bool = False) -> str:
    """SHA-256 of a file, as lower-case hex.

    Args:
        path: the file.
        fresh: read what the storage holds, not what this node remembers of writing it; and leave
            nothing in memory that the ranks could use better.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if fresh:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(_READ_BYTES):
            digest.update(block)
        if fresh:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def digest_body(body: dict[str, Any]) -> str:
    """SHA-256 of a manifest's body: what the manifest says about itself."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


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


def published(checkpoints_dir: Path) -> list[tuple[int, Path]]:
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
        content = (path / MANIFEST).read_bytes()
    except OSError as error:
        _refuse_trouble(error)
        content = b""
    return check_manifest(content, path.name)


def check_manifest(content: bytes, name: str) -> tuple[Optional[dict[str, Any]], list[str]]:
    """(body, problems) of the manifest of a checkpoint of that name."""
    try:
        text = content.decode()
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("body"), dict):
        return None, [f"{MANIFEST} is missing or unreadable"]
    body: dict[str, Any] = manifest["body"]
    # Byte for byte what was written: a blank that has become another byte is damage too.
    if manifest.get("sha256") != digest_body(body) or text != json_text(manifest):
        return None, [f"{MANIFEST} does not match its own digest"]
    match = _ANY.fullmatch(name)
    if match and int(match[1]) != body["step"]:
        return None, [f"{MANIFEST} is of training step {body['step']}"]
    return body, []


def verify(
    path: Path,
    *,
    contents: bool = True,
    part: tuple[int, int] = (0, 1),
    fresh: bool = False,
    patience_s: float = 0.0,
) -> list[str]:
    """Problems of a published checkpoint; an empty list means it is good.

    Args:
        path: the checkpoint's folder.
        contents: also read every byte and compare checksums; False compares names and sizes.
        part: (i, n) reads only every n-th file, so that n nodes share the reading.
        fresh: read from the storage with one reader at a time, not from this node's memory.
        patience_s: what is missing or short may only not be visible on this node yet: look again
            for so long before it counts.

    Raises:
        OSError: the storage is away; nothing is said about the checkpoint.
    """
    deadline = time.monotonic() + patience_s
    while True:
        body, problems = read_manifest(path)
        if body is not None and not problems:
            problems = _shape_problems(path, body["files"])
        if not problems or time.monotonic() > deadline:
            break
        time.sleep(min(0.5, patience_s))
    if body is None or problems or not contents:
        return problems
    return _content_problems(path, body["files"], part, fresh=fresh)


def _shape_problems(path: Path, files: dict[str, Any]) -> list[str]:
    """What names and sizes alone tell."""
    problems = []
    found = sizes(path)
    for name, fact in files.items():
        if name not in found:
            problems.append(f"{name} is missing")
        elif found[name] is None:
            problems.append(f"{name} is no regular file")
        elif found[name] != fact["bytes"]:
            problems.append(f"{name} has {found[name]} bytes instead of {fact['bytes']}")
    unsealed = set(found) - set(files) - {MANIFEST}
    return problems + [f"{name} is not sealed" for name in sorted(unsealed)]


def _content_problems(
    path: Path, files: dict[str, Any], part: tuple[int, int], *, fresh: bool
) -> list[str]:
    """What only reading tells."""
    problems = []
    mine = sorted(files)[part[0] :: part[1]]
    with ThreadPoolExecutor(max_workers=1 if fresh else 4) as pool:
        digests = pool.map(lambda name: _digest_or_error(path / name, fresh=fresh), mine)
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


def sizes(folder: Path) -> dict[str, Optional[int]]:
    """{name: bytes} of all but folders; None for a link, whose content belongs to somebody else."""
    found: dict[str, Optional[int]] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone, or unreadable: missing
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                regular = stat.S_ISREG(status.st_mode)
                found[path.relative_to(folder).as_posix()] = status.st_size if regular else None
    return found


def _digest_or_error(path: Path, *, fresh: bool) -> Union[str, OSError]:
    try:
        return digest_file(path, fresh=fresh)
    except OSError as error:
        return error


@dataclass(frozen=True)
class Picked:
    """The checkpoint to resume from, and what had to be set aside to get there."""

    path: Optional[Path]
    step: int  # 0 when there is none
    set_aside: list[tuple[str, list[str]]] = field(default_factory=list)
    ever_existed: bool = False
    attempt: Optional[int] = None  # that published it, says its manifest
    sha256: str = ""  # of its manifest's body

    @property
    def lost(self) -> bool:
        """Checkpoints existed, none verifies: starting from zero would hide the loss."""
        return self.path is None and self.ever_existed


def pick(checkpoints_dir: Path, *, patience_s: float = 0.0) -> Picked:
    """The newest checkpoint that verifies; bad ones are renamed aside, never deleted.

    Only the owner of the run may call this: it changes names.

    Args:
        checkpoints_dir: holds the checkpoints of one run.
        patience_s: as of `verify`: another node may have published a moment ago.
    """
    aside: list[tuple[str, list[str]]] = []
    for step, path in published(checkpoints_dir):
        problems = verify(path, patience_s=patience_s)
        if not problems:
            body, _ = read_manifest(path)
            attempt, sha256 = (body["attempt"], digest_body(body)) if body else (None, "")
            return Picked(path, step, aside, ever_existed=True, attempt=attempt, sha256=sha256)
        set_aside(path)
        aside.append((path.name, problems))
    return Picked(None, 0, aside, ever_existed=_any_evidence(checkpoints_dir))


def _any_evidence(checkpoints_dir: Path) -> bool:
    """Whether a checkpoint was ever published here, good or bad."""
    if not checkpoints_dir.is_dir():
        return False
    return any(
        _ANY.fullmatch(p.name) and not _DRAFT.fullmatch(p.name) for p in checkpoints_dir.iterdir()
    )


def set_aside(path: Path, why: str = "bad") -> Path:
    """Rename a checkpoint so that nobody resumes from it; returns where it is. Nothing is deleted.

    Args:
        path: its folder.
        why: bad: it did not verify. rolled_back: the loss guard went back behind it.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}{number}")).exists():
        number += 1
    path.rename(aside)
    fsync_dir(path.parent)
    return aside


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
    """Delete what `retention.doomed` gives away, for runs by hand: nobody verifies there.

    A checkpoint whose names and sizes are not right counts for nothing: it neither fills a place
    nor is deleted, so the last good one can never be pruned in favour of bad newer ones.
    """
    good = {s: p for s, p in published(checkpoints_dir) if not verify(p, contents=False)}
    for step in doomed(good, set(good), keep):
        delete(good[step])


def delete(path: Path) -> None:
    """Delete a checkpoint: first the name goes, so a half deleted folder never looks published."""
    gone = path.with_name(f"{path.name}.deleting")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
