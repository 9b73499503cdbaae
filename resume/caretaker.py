"""One round over the published checkpoints: read what was written, set bad ones aside, copy, prune.

Runs as a process of its own beside the supervisor (`muster caretake`), at the lowest priority, so
that a file server that stands still holds up nobody. It may be killed at any moment: each act is
one rename. What it did it says on standard output, a JSON line each; the supervisor writes that
into the journal, which is also where the next round learns what is verified already.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from muster.errors import ConfigError, StorageError, UnavailableError
from muster.recipe import Checkpoints
from resume import checkpoint, journal, lease, retention
from resume.archive import Archive, ArchiveError, open_store

VISIBLE_S = 5.0
"""What another node has written may take so long to be seen here (NFS caches attributes)."""


def print_line(fact: dict[str, Any]) -> None:
    """One JSON line to whoever started us."""
    os.write(1, json.dumps(fact).encode() + b"\n")


@dataclass
class Caretaker:
    """What one round works on."""

    run_dir: Path
    token: int
    rules: Checkpoints
    verified: set[int]  # training steps on the shared file system that were read and were good
    say: Callable[[dict[str, Any]], None] = print_line
    patience_s: float = VISIBLE_S
    archive: Optional[Archive] = None
    archived: set[int] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        """The shared tier."""
        return self.run_dir / "checkpoints"

    def round(self) -> None:
        """Do all that is to be done now.

        Raises:
            OSError: the storage is away; the next round will do.
        """
        self.verify_new()
        self.prune()
        while self.archive is not None and self._copy_next(self.archive):
            self.prune()
            self._prune_archive(self.archive)

    def _copy_next(self, archive: Archive) -> bool:
        """One checkpoint into the archive; False when it has what it should have."""
        held = self._held()
        step = retention.next_copy(held, self.archived, self.rules.keep_every)
        if step is None:
            return False
        started = time.monotonic()
        path = self.folder / checkpoint.step_name(step)
        num_bytes = archive.put(path)
        self.archived.add(step)
        took_s = round(time.monotonic() - started, 3)
        facts = {"tier": "archive", "num_bytes": num_bytes, "took_s": took_s}
        self.say({"copied": path.name, **facts})
        return True

    def _held(self) -> set[int]:
        return self.verified & {step for step, _ in checkpoint.published(self.folder)}

    def _prune_archive(self, archive: Archive) -> None:
        rules = self.rules
        gone = retention.doomed(self.archived, self.archived, rules.archive_keep, rules.keep_every)
        for step in gone:
            if not lease.owns(self.run_dir, self.token):
                return
            archive.delete(step)
            self.archived.discard(step)
            self.say({"pruned": [checkpoint.step_name(step)], "tier": "archive"})

    def verify_new(self) -> None:
        """Read every checkpoint that nobody has read yet, the newest first.

        An old one that the rules give away unread is not worth the reading.
        """
        for step, path in checkpoint.published(self.folder):
            if step in self.verified or step in self._doomed():
                continue
            started = time.monotonic()
            problems = checkpoint.verify(path, fresh=True, patience_s=self.patience_s)
            if not path.exists():
                continue  # somebody moved it meanwhile
            if problems:
                if lease.owns(self.run_dir, self.token):
                    checkpoint.set_aside(path)
                    self.say({"set_aside": path.name, "problems": problems[:10]})
                continue
            self.verified.add(step)
            body, _ = checkpoint.read_manifest(path)
            facts = {"attempt": body["attempt"]} if body else {}
            took_s = round(time.monotonic() - started, 3)
            self.say({"verified": path.name, "tier": "shared", "took_s": took_s, **facts})

    def _doomed(self) -> list[int]:
        steps = [step for step, _ in checkpoint.published(self.folder)]
        known = self.verified & set(steps)
        below = self.archived if self.archive is not None else None
        return retention.doomed(steps, known, self.rules.keep, self.rules.keep_every, below)

    def prune(self) -> None:
        """Delete what the rules give away."""
        gone = []
        for step in self._doomed():
            if not lease.owns(self.run_dir, self.token):
                return
            path = self.folder / checkpoint.step_name(step)
            with contextlib.suppress(FileNotFoundError):
                checkpoint.delete(path)
                gone.append(path.name)
        if gone:
            self.say({"pruned": gone, "tier": "shared"})


def main(run_dir: Path, token: int, rules: Checkpoints, place: tuple[str, Optional[str]]) -> int:
    """One round at the lowest priority.

    Args:
        run_dir: the run.
        token: of the supervisor that started us.
        rules: what stays.
        place: URL and endpoint of the run's archive; used if the rules want one.

    Returns:
        0; 74: the storage is away; 69: the archive is. The next round goes on where this one ended.
    """
    lowest_priority()
    state = journal.fold(journal.read(run_dir / "journal.jsonl"))
    one = Caretaker(run_dir, token, rules, set(state.verified), archived=set(state.archived))
    try:
        if rules.archive:
            one.archive = Archive(open_store(*place))
        one.round()
    except OSError as error:
        print_line({"trouble": str(error)})
        return StorageError.code
    except (ArchiveError, ConfigError) as error:
        print_line({"trouble": f"archive: {error}"})
        return UnavailableError.code
    return 0


def lowest_priority() -> None:
    """Training comes first."""
    with contextlib.suppress(OSError):
        os.nice(19)
