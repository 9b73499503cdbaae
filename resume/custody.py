"""The supervisor's side of the caretaker: starts a round when something was published, takes down
what it did, and ends it before anybody else touches checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from muster.errors import DataError, StorageError
from resume import checkpoint, local_copies, retention
from resume.fleet import own_argv, step_environment
from resume.tiers import Place, place_of, worth_fetching

if TYPE_CHECKING:
    from resume.supervisor import Supervisor

_LOOK_S = 1.0
_RETRY_S = 30.0
_END_S = 1.0


@dataclass
class Custody:
    """At most one caretaker, and only between `begin` and `end`."""

    supervisor: Supervisor
    place: Optional[Place] = None  # of the archive, if there is one
    may_run: bool = False
    _told: str = ""
    _process: Optional[subprocess.Popen[bytes]] = None
    _buffer: bytes = b""
    _looked_at: float = 0.0
    _seen: Optional[frozenset[str]] = None  # names for which there is nothing left to do
    _seen_at_start: frozenset[str] = field(default_factory=frozenset)
    _not_before: float = 0.0
    _busy: bool = False

    @property
    def folder(self) -> Path:
        """The shared tier."""
        return self.supervisor.run_dir / "checkpoints"

    @property
    def local_folder(self) -> Optional[Path]:
        """Where nodes keep copies on their own disks; None: the recipe wants none."""
        s = self.supervisor
        if not s.recipe.checkpoints.local:
            return None
        nonce = (s.run_dir / "nonce").read_text(encoding="utf-8")
        return local_copies.run_folder(s.site.scratch_path, nonce)

    def _order_copies(self, name: str) -> None:
        """Have every node copy what its ranks wrote, now that the checkpoint is known to be good.

        Older ones are verified after newer ones, and not copied. A disk that hiccups costs these
        copies and nothing else.
        """
        s = self.supervisor
        if checkpoint.step_of(name) < max(s.state.verified):
            return
        with contextlib.suppress(OSError):
            folder, path = self.local_folder, self.folder / name
            body, _ = checkpoint.read_manifest(path)
            if folder is not None and body is not None:
                s.fleet.order(
                    do="keep",
                    path=str(path),
                    sha256=checkpoint.digest_body(body),
                    folder=str(folder),
                    reserve_bytes=s.site.scratch_min_free_bytes,
                )

    def prepare(self) -> None:
        """Find the archive, before anything is spent on the run.

        Raises:
            ConfigError: the recipe wants one that cannot be.
        """
        s = self.supervisor
        rules = s.recipe.checkpoints
        self.place = place_of(s.site, rules, s.run_dir, s.recipe.name, s.job.job_id)

    def fetch_newer(self, have: int) -> Optional[bool]:
        """Bring back from the archive what is newer than the best of the shared file system.

        Returns:
            True: something was brought back. False: there is nothing. None: there is something, but
            the archive does not answer.

        Raises:
            OSError: it cannot be written.
        """
        s = self.supervisor
        archived = s.state.archived if self.place is not None else set()
        for step in worth_fetching(archived, have, self.folder):
            name = checkpoint.step_name(step)
            s.say(f"checkpoint {name} is brought back from the archive")
            code = self._restore(step)
            if code == 0:
                return True
            log = s.run_dir / "logs" / "caretaker.log"
            if code == StorageError.code:
                raise OSError(errno.EIO, f"{name} cannot be brought back, see {log}")
            if code != DataError.code:
                s.say(f"checkpoint {name} cannot be brought back now, see {log}")
                return None
            s.say(f"checkpoint {name} is bad in the archive too")
        return False

    def _restore(self, step: int) -> int:
        """Exit code of `muster restore`, which may take as long as it needs."""
        s = self.supervisor
        argv = [*own_argv(), "restore", str(s.run_dir), "--step", str(step)]
        with (s.run_dir / "logs" / "caretaker.log").open("ab") as log:
            process = subprocess.Popen(
                argv, env=step_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            s.wait_for(lambda: process.poll() is not None, math.inf)
        finally:
            process.kill()
            process.wait()
        return process.returncode

    def begin(self) -> None:
        """From now on checkpoints may be verified, copied and pruned beside the ranks."""
        self.may_run = True

    def tick(self) -> None:
        """Take down what the caretaker said; start the next round if there is something to do."""
        if self._busy:
            return  # the journal waits for its disk, and ticks meanwhile
        self._busy = True
        try:
            self._collect()
            self._start_if_needed(time.monotonic())
        finally:
            self._busy = False

    def _start_if_needed(self, now: float) -> None:
        if self._process is not None or not self.may_run or now < self._not_before:
            return
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        names = self._names()
        if names != self._seen and self._pending(names):
            self._start(names)

    def _pending(self, names: frozenset[str]) -> bool:
        """Whether the rules ask for anything."""
        s = self.supervisor
        rules, verified = s.recipe.checkpoints, s.state.verified
        steps = {checkpoint.step_of(name) for name in names}
        below = s.state.archived if self.place is not None else None
        given_away = retention.doomed(steps, verified & steps, rules.keep, rules.keep_every, below)
        held = verified & steps
        copy = self.place is not None and retention.next_copy(
            held, s.state.archived, rules.keep_every
        )
        return bool(steps - verified or given_away or copy)

    def _names(self) -> frozenset[str]:
        """What is published; that and nothing else makes work."""
        try:
            return frozenset(path.name for _, path in checkpoint.published(self.folder))
        except OSError:
            return frozenset()

    def _start(self, names: frozenset[str]) -> None:
        log = self.supervisor.run_dir / "logs" / "caretaker.log"
        self._buffer, self._seen_at_start = b"", names
        try:
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    self._argv(),
                    env=step_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # signals for the batch shell are not for it
                )
        except OSError as error:  # a full disk, no memory: training goes on
            self.supervisor.say(f"checkpoints are not looked after: {error}")
            self._not_before = time.monotonic() + _RETRY_S
            return
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def _argv(self) -> list[str]:
        s = self.supervisor
        rules = s.recipe.checkpoints
        return [
            *(*own_argv(), "caretake", str(s.run_dir), "--token", str(s.token)),
            *("--keep", str(rules.keep), "--keep-every", str(rules.keep_every)),
            *self._archive_words(),
        ]

    def _archive_words(self) -> list[str]:
        if self.place is None:
            return []
        words = ["--archive", self.place.url]
        words += ["--archive-keep", str(self.supervisor.recipe.checkpoints.archive_keep)]
        return [*words, "--endpoint", self.place.endpoint] if self.place.endpoint else words

    def _collect(self) -> None:
        process = self._process
        if process is None:
            return
        code = process.poll()  # before the last reading: what it said before it ended counts
        self._read(process)
        if code is None:
            return
        self._process = None
        if process.stdout is not None:
            process.stdout.close()
        if code == 0:
            # What the round itself removed is no news; what was published meanwhile is.
            self._seen = self._names() & self._seen_at_start
        else:
            self._not_before = time.monotonic() + _RETRY_S

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None:
            return
        with contextlib.suppress(BlockingIOError):
            while block := os.read(process.stdout.fileno(), 65536):
                self._buffer += block
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                if isinstance(fact, dict):
                    self._take_down(fact)

    def _take_down(self, fact: dict[str, Any]) -> None:
        s = self.supervisor
        if "verified" in fact:
            name = str(fact.pop("verified"))
            note_verified(s, name, **fact)
            self._order_copies(name)
        elif "set_aside" in fact:
            note_set_aside(s, fact["set_aside"], fact["problems"])
        elif "pruned" in fact:
            s.note("pruned", checkpoints=fact["pruned"], tier=fact["tier"])
        elif "copied" in fact:
            s.note(
                "copied",
                checkpoint=fact["copied"],
                tier=fact["tier"],
                num_bytes=fact["num_bytes"],
                took_s=fact["took_s"],
            )
        elif "trouble" in fact and fact["trouble"] != self._told:
            self._told = str(fact["trouble"])
            s.say(f"checkpoints are not looked after now: {self._told}")

    def end(self) -> None:
        """Nobody but the caller touches checkpoints from now on."""
        self.may_run, self._seen = False, None
        process = self._process
        if process is None:
            return
        process.kill()  # each of its acts is one rename
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)  # in a call to storage that is away it ends when that returns
        self._read(process)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def settle(self, timeout_s: float) -> bool:
        """Rounds until there is nothing left to do, while no rank runs; False: not in time."""
        self.begin()
        self._seen, self._not_before, self._looked_at = None, 0.0, 0.0
        done = self.supervisor.wait_for(self._settled, timeout_s)
        self.end()
        return done

    def _settled(self) -> bool:
        names = self._names()
        return self._process is None and (names == self._seen or not self._pending(names))


def note_verified(s: Supervisor, name: str, **facts: Any) -> None:
    """A checkpoint was read from its tier and is good."""
    known = {"tier": "shared", "attempt": None, "took_s": None, **facts}
    s.note(
        "checkpoint_verified",
        checkpoint=name,
        tier=known["tier"],
        attempt=known["attempt"],
        took_s=known["took_s"],
    )


def note_set_aside(s: Supervisor, name: str, problems: list[str]) -> None:
    """A bad checkpoint is told at once: whoever has to look after storage can do it today."""
    s.say(f"checkpoint {name} is bad and set aside: {problems[0]}")
    s.note("set_aside", checkpoint=name, problems=problems[:10])
