"""A checkpoint being written: every rank seals its files, rank 0 publishes with one rename.

    checkpoints/step_00000500.a3.tmp/   the draft of attempt 3
    checkpoints/step_00000500/          published: shards + manifest.json

Standard library only: recipes import it through `resume`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from resume.checkpoint import (
    MANIFEST,
    CheckpointError,
    StorageError,
    check_token,
    digest_body,
    digest_file,
    prune,
    sizes,
    step_name,
)
from resume.durable import fsync_dir, fsync_file, read_json, write_json
from resume.hashed_file import HashedFile


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
    keep: Optional[int] = None  # by hand; None: the supervisor prunes
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
        """Wait for the seals of all ranks, write the manifest, rename. Rank 0 acts.

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
        metrics = self.checkpoints_dir.parent / "metrics.jsonl"
        try:
            if metrics.exists():  # what led to this checkpoint must outlive a power loss with it
                fsync_file(metrics)
            for rank in range(self.world_size):
                self._seal_file(rank).unlink()
            write_json(self.dir / MANIFEST, {"body": body, "sha256": digest_body(body)})
            check_token(self.owner_file, self.token, self.attempt)
            self.dir.rename(self.published)
            fsync_dir(self.checkpoints_dir)
        except OSError as error:
            raise StorageError(f"checkpoint {self.dir.name}: {error}") from error
        if self.keep is not None:
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
        unsealed = set(sizes(self.dir)) - set(sealed) - seals
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
                    files.update({name: {**fact, "rank": rank} for name, fact in seal.items()})
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
