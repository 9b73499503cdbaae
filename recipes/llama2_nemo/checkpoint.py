"""Save whole, in the background, by NeMo's own means.

NeMo has Megatron-Core write the shards under the names of the whole model, so a model that is split
differently can load them; `resume` seals and publishes them. A save copies the state to host
memory, then processes forked by the library write it while training goes on; when those of all
ranks are through, at the edge of some later training step, NeMo calls `_written`, and a thread
seals and publishes. At most one save is in flight.

NeMo's own ModelCheckpoint would decide when, under which name, and what is deleted; here that is
the contract's business, so there is none.
"""

import logging
import queue
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Checkpoint as CheckpointCallback
from megatron.core.dist_checkpointing.strategies import filesystem_async
from nemo.utils.callbacks.dist_ckpt_io import AsyncFinalizerCallback

import resume
from config import Checkpoint
from errors import Stop
from resume.checkpoint import read_manifest

WEIGHTS = "weights"  # NeMo's name for the folder of shards
PROBE_BYTES = 4 << 20
RESULT_S = 60.0  # a forked writer has ended: what it reports is on its way


def read_facts(path: Path) -> dict[str, Any]:
    """What the checkpoint says about itself, to be compared before anything is loaded.

    Raises:
        Stop: not a published checkpoint (65).
    """
    body, problems = read_manifest(path)
    if body is None or "run" not in body["meta"]:
        what = problems[0] if problems else "it is not of this recipe"
        raise Stop(Stop.DATA, f"checkpoint {path}", what, "name a checkpoint of this recipe")
    facts: dict[str, Any] = body["meta"]
    return facts


def compare(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue a run with another model, data or order of samples.

    Raises:
        Stop: naming the first difference (78).
    """
    for key in sorted(saved.keys() | now.keys()):
        if saved.get(key) != now.get(key):
            raise Stop(
                Stop.CONFIG,
                f"checkpoint {path.name}",
                f"made with {key}={saved.get(key)}, this run has {now.get(key)}",
                f"give {key} its old value, or start a new run in another RUN_DIR",
            )


class Results:
    """What forked writers report, held in this process.

    The library's own queue (filesystem_async.py, `_get_write_results_queue`) is a server process
    that is spawned: it imports this whole program again, half a minute of NeMo on every rank, and
    outlives a rank that is killed. A pipe and a thread do the same.
    """

    def __init__(self) -> None:
        self._pipe = get_context("fork").SimpleQueue()
        self._arrived: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    def put(self, result: Any) -> None:
        """Called in the writer."""
        self._pipe.put(result)

    def get_nowait(self) -> Any:
        """Called here, when the writer has ended."""
        return self._arrived.get(timeout=RESULT_S)

    def _collect(self) -> None:
        while True:
            self._arrived.put(self._pipe.get())


class Saver(CheckpointCallback):
    """Writes checkpoints of one run; every rank calls the same methods in the same order."""

    def __init__(self, run: resume.Run, options: Checkpoint, saved_step: int | None) -> None:
        self._run, self._options = run, options
        filesystem_async._results_queue = Results()  # noqa: SLF001
        # Its writers say what went wrong, on every rank; our one line does.
        filesystem_async.logger.setLevel(logging.CRITICAL)
        self._in_flight: tuple[resume.CheckpointDraft, dict[str, Any]] | None = None
        self._thread: threading.Thread | None = None
        self._problem: Stop | None = None
        self.saved_step = saved_step  # newest training step that is published or on its way
        self.last_model_path = ""  # NeMo's AutoResume notes here what it resumes from

    @property
    def problem(self) -> Stop | None:
        """Why the last save failed on this rank; to be agreed on at the next training-step edge."""
        return self._problem

    def save(self, trainer: Any, step: int, facts: dict[str, Any]) -> None:
        """Save this training step, unless it is saved already. Returns once it is staged."""
        if step == self.saved_step:
            return
        self.finish(trainer)
        self.saved_step = step
        draft = self._begin(step)
        if draft is None:
            return
        self._in_flight = (draft, facts)
        options = {"finalize_fn": self._written} if self._options.mode == "async" else {}
        try:
            trainer.save_checkpoint(draft.dir, storage_options=options)
        except BaseException as error:  # noqa: BLE001  (the library's own is a BaseException)
            self.fail(error)
        else:
            if not options:
                self._written()

    def finish(self, trainer: Any) -> None:
        """Wait for the save in flight."""
        if self._in_flight is not None and self._options.mode == "async":
            finalize(trainer, self, blocking=True)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def fail(self, error: BaseException) -> None:
        """The save in flight is lost."""
        if self._in_flight is not None:
            draft, _ = self._in_flight
            self._problem = _as_stop(self._full_disk(draft.dir) or error)
            self._in_flight = None

    def _begin(self, step: int) -> resume.CheckpointDraft | None:
        """The draft, if all ranks have it: what follows they must do together."""
        draft = None
        try:
            draft = self._run.begin_checkpoint(step)
        except (resume.CheckpointError, OSError) as error:
            self._problem = _as_stop(error)
        failed = torch.tensor(int(self._problem is not None), device=torch.cuda.current_device())
        dist.all_reduce(failed)
        return None if failed.item() else draft

    def _written(self) -> None:
        """All ranks have written their shards."""
        if self._in_flight is not None:
            self._thread = threading.Thread(target=self._publish, args=self._in_flight, daemon=True)
            self._in_flight = None
            self._thread.start()

    def _publish(self, draft: resume.CheckpointDraft, facts: dict[str, Any]) -> None:
        try:
            draft.seal(_own_files(draft.dir / WEIGHTS, self._run.rank))
            draft.publish(facts)
        except resume.CheckpointError as error:
            self._problem = _as_stop(error)

    def _full_disk(self, folder: Path) -> OSError | None:
        """What the disk says now: the library's writers lose the operating system's error."""
        probe = folder / f"probe.{self._run.rank}"
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        except OSError as error:
            return error
        finally:
            probe.unlink(missing_ok=True)
        return None


class Finalizer(AsyncFinalizerCallback):  # type: ignore[misc]  # untyped
    """NeMo's look at the writers after every training step; what they report is no crash here."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def on_train_batch_end(self, trainer: Any, *_args: Any, **_more: Any) -> None:
        """Seal and publish if the writers of all ranks are done."""
        finalize(trainer, self._saver, blocking=False)

    def on_train_epoch_end(self, trainer: Any, *_args: Any, **_more: Any) -> None:
        """Nothing: there is a training step before."""

    def on_train_end(self, trainer: Any, *_args: Any, **_more: Any) -> None:
        """Nothing: train.py waits for the last save, also if there was no training step."""


def finalize(trainer: Any, saver: Saver, *, blocking: bool) -> None:
    """Have NeMo call `_written` for the save that all ranks have finished."""
    try:
        trainer.strategy.checkpoint_io.maybe_finalize_save_checkpoint(blocking=blocking)
    except BaseException as error:  # noqa: BLE001  (the library's own is a BaseException)
        saver.fail(error)


def _own_files(folder: Path, rank: int) -> Iterator[Path]:
    yield from sorted(folder.glob(f"__{rank}_*.distcp"))
    if rank == 0:
        yield from (folder / name for name in (".metadata", "common.pt", "metadata.json"))


def _as_stop(error: BaseException) -> Stop:
    """One line for whoever reads the log, and a code that says whether the node is to blame."""
    if isinstance(error, resume.Fenced):
        fix = "nothing: the newer attempt goes on"
        return Stop(Stop.TEMPORARY, "checkpoint", str(error), fix)
    if isinstance(error, (resume.StorageError, OSError)):
        fix = "free or repair the disk that holds RUN_DIR, then submit again"
        return Stop(Stop.STORAGE, "checkpoint", str(error), fix)
    text = (str(error).strip().splitlines() or ["no reason given"])[-1]
    return Stop(Stop.CRASH, "checkpoint", f"{type(error).__name__}: {text}", "see this rank's log")
