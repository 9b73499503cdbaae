"""The five sentences of the recipe contract, as methods of one object.

A recipe asks `Run` where to resume, when to leave and where to save; it never reads MUSTER_*
variables itself. Works without a supervisor too, so that `python train.py` by hand is the same
program. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Optional

from resume import preflight, retention, skips
from resume.checkpoint import StorageError, check_token, step_name
from resume.draft import CheckpointDraft
from resume.durable import append_line, write_json

_leave = False


def _set_leave(_signum: int, _frame: Optional[FrameType]) -> None:
    global _leave  # noqa: PLW0603  (a signal handler has nowhere else to put it)
    _leave = True


def settings_file(run_dir: Path, attempt: int) -> Path:
    """Where rank 0 writes the settings of an attempt."""
    return run_dir / "settings" / f"attempt_{attempt:03d}.json"


@dataclass(frozen=True)
class Run:
    """What the supervisor tells a rank, and what a rank tells the supervisor."""

    dir: Path  # RUN_DIR, shared by all ranks
    recipe_dir: Path  # the folder that the user submitted; prepared data lives there
    resume: Optional[Path]  # verified checkpoint to start from; None: from the start
    attempt: int
    token: int
    rank: int
    local_rank: int
    world_size: int
    beat_dir: Optional[Path]
    skip: tuple[skips.Window, ...] = ()  # windows of batches that are left out on purpose

    @classmethod
    def from_env(cls) -> Run:
        """Read the contract's variables, arm SIGUSR2 and show the first beat."""
        env = os.environ
        resume = env.get("MUSTER_RESUME", "")
        beat_dir = env.get("MUSTER_BEAT_DIR", "")
        run = cls(
            dir=Path(env.get("MUSTER_RUN_DIR") or "runs/by_hand").absolute(),
            recipe_dir=Path(env.get("MUSTER_RECIPE_DIR") or ".").absolute(),
            resume=Path(resume).absolute() if resume else None,
            attempt=int(env.get("MUSTER_ATTEMPT") or 1),
            token=int(env.get("MUSTER_TOKEN") or 0),
            rank=int(env.get("RANK") or 0),
            local_rank=int(env.get("LOCAL_RANK") or 0),
            world_size=int(env.get("WORLD_SIZE") or 1),
            beat_dir=Path(beat_dir) if beat_dir else None,
            skip=tuple(skips.parse(env.get("MUSTER_SKIP", ""))),
        )
        run.dir.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGUSR2, _set_leave)
        if beat_dir:  # so does Slurm when a job has a grace time before preemption
            signal.signal(signal.SIGTERM, _set_leave)
        run.beat("setup")  # only now: whoever sees this process number may send SIGUSR2
        return run

    @property
    def leave_requested(self) -> bool:
        """True after SIGUSR2 or SIGTERM: at the next training-step edge agree, save, exit 0."""
        return _leave

    @property
    def checkpoints_dir(self) -> Path:
        """Folder of all checkpoints of this run."""
        return self.dir / "checkpoints"

    @property
    def owner_file(self) -> Path:
        """Names the supervisor that owns the run (fencing)."""
        return self.dir / "owner.json"

    def beat(self, phase: str, step: Optional[int] = None) -> None:
        """Show life: phase is setup, step, save or eval. Costs some microseconds.

        Beats go to memory of the node, not to the shared file system: a slow file system must not
        look like a hang.
        """
        if self.beat_dir is None:
            return
        beat = json.dumps({"pid": os.getpid(), "phase": phase, "step": step})
        try:
            path = self.beat_dir / f"rank_{self.rank}.json"
            temporary = path.with_suffix(".tmp")
            temporary.write_text(beat, encoding="utf-8")
            temporary.replace(path)
        except OSError:
            return  # showing life must never end a life

    def batch(self, step: int) -> int:
        """Number of the batch that a training step takes, both counted from 1.

        The same number, unless the loss guard leaves data out; derive the data from this one alone.
        """
        return skips.batch_of(step, self.skip)

    def log_metrics(self, metrics: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl (rank 0; elsewhere nothing happens).

        Args:
            metrics: at least step, loss, samples; `batch`, `time` (unix seconds) and `attempt` are
                added.
        """
        if self.rank == 0:
            step = metrics.get("step")
            batch = {"batch": self.batch(step)} if isinstance(step, int) else {}
            line = {**batch, **metrics, "time": time.time(), "attempt": self.attempt}
            append_line(self.dir / "metrics.jsonl", line, durable=False)

    def note_settings(self, settings: dict[str, Any]) -> None:
        """Say what this attempt trains with (rank 0; elsewhere nothing happens).

        The supervisor writes into the journal what is other than in the attempt before.

        Args:
            settings: flat, {"optim.lr": 0.001}; what JSON can hold.
        """
        if self.rank == 0:
            path = settings_file(self.dir, self.attempt)
            path.parent.mkdir(exist_ok=True)
            write_json(path, settings)

    def begin_checkpoint(self, step: int) -> CheckpointDraft:
        """Create the folder to write the checkpoint of a training step into; same on all ranks.

        Raises:
            StorageError: the folder cannot be created; or, said by rank 0 before anything is
                written, there is less space than the last checkpoint has taken.
        """
        draft = CheckpointDraft(
            checkpoints_dir=self.checkpoints_dir,
            step=step,
            attempt=self.attempt,
            rank=self.rank,
            world_size=self.world_size,
            token=self.token,
            owner_file=self.owner_file,
            keep=None if self.token else retention.KEEP,
        )
        try:
            draft.dir.mkdir(parents=True, exist_ok=True)
            if self.rank == 0:
                preflight.refuse_full(self.checkpoints_dir, f"checkpoint {draft.dir.name}")
        except OSError as error:
            raise StorageError(f"checkpoint {draft.dir.name}: {error}") from error
        return draft

    def wait_published(self, step: int, timeout_s: float = 600.0) -> bool:
        """Wait on any rank until the checkpoint of that step is published; False: not in time."""
        deadline = time.monotonic() + timeout_s
        published = self.checkpoints_dir / step_name(step)
        while not published.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def done(self, step: int, result: dict[str, Any]) -> None:
        """Say that training is complete (rank 0; elsewhere nothing happens).

        Raises:
            Fenced: another supervisor owns the run.
        """
        if self.rank == 0:
            check_token(self.owner_file, self.token, self.attempt)
            write_json(self.dir / "DONE", {"step": step, **result})
