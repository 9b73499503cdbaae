"""Save whole, in the background; load into any layout.

megatron.core.dist_checkpointing writes the shards under the names of the whole model, so a model
that is split differently can load them; `resume` seals and publishes them. A save copies the state
to host memory, then processes forked by the library write it while training goes on; when those of
all ranks are through, at the edge of some later training step, the ranks write the index together
and a thread seals and publishes. At most one save is in flight.
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
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import (
    get_default_save_sharded_strategy,
)
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.optimizer.distrib_optimizer import HAVE_APEX_OR_TE

import resume
from config import Checkpoint
from errors import Stop
from model import bare
from resume.checkpoint import read_manifest

State = dict[str, Any]
RESERVE_BYTES = 4 << 20  # kept free on the disk for the index, which is written last
RESULT_S = 60.0  # a forked writer has ended: what it reports is on its way


def live_state(models: list[Any], optimizer: Any, form: str, *, loading: bool) -> State:
    """Weights and AdamW's state as shards of the whole model, for saving or to be loaded into."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = {
        "distrib_optim_sharding_type": form,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": group,
    }
    pieces = zip(_names(models), models, strict=True)
    state: State = {name: bare(m).sharded_state_dict(metadata=metadata) for name, m in pieces}
    # The optimizer looks up the shards of the weights, so it gets them in a dictionary of its own.
    return {
        **state,
        "optimizer": optimizer.sharded_state_dict(dict(state), loading, metadata=metadata),
    }


def _names(models: list[Any]) -> list[str]:
    """Of the pieces of the model on a pipeline rank, as the optimizer expects them."""
    return ["model"] if len(models) == 1 else [f"model{i}" for i in range(len(models))]


def prepare_adamw(optimizer: Any) -> None:
    """Create the state of torch's AdamW, zero as AdamW itself would.

    Without it the library cannot describe an optimizer that has not made a step
    (optimizer/distrib_optimizer.py, "assert len(steps) == 1"). Fused optimizers need nothing.
    """
    for part in optimizer.chained_optimizers:
        for weights in (group["params"] for group in part.optimizer.param_groups):
            for weight in weights if not HAVE_APEX_OR_TE else ():
                slots = part.optimizer.state[weight]
                slots["step"] = torch.zeros(())
                slots["exp_avg"] = torch.zeros_like(weight)
                slots["exp_avg_sq"] = torch.zeros_like(weight)


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


@torch.no_grad()
def load(path: Path, models: list[Any], optimizer: Any, step: int, form: str) -> None:
    """Fill weights and optimizer in place; the layout may differ from the one that saved.

    Every rank reads what it needs itself. The library can also read each byte once and send it
    around, but on GPUs what is sent stays there: all of AdamW's state, unsharded.
    """
    wanted = live_state(models, optimizer, form, loading=True)
    found = dist_checkpointing.load(wanted, str(path))
    states = found.pop("optimizer")
    for name, model in zip(_names(models), models, strict=True):
        bare(model).load_state_dict(found[name])
    parts = optimizer.chained_optimizers
    for number, part in enumerate(parts):
        state = states if len(parts) == 1 else states[number]
        # Not part.load_state_dict: with torch's AdamW it looks for a "step" that no checkpoint
        # holds, and gives all weights one and the same step, which then counts them all.
        for slots in part.optimizer.state.values():
            slots.pop("step", None)
        getattr(part, f"load_parameter_state_from_{form}")(state["param_state"])
        set_step(part.optimizer, step)


def set_step(adamw: torch.optim.Optimizer, step: int) -> None:
    """AdamW counts updates, one for each training step: fused ones by group, torch's by weight."""
    for group in adamw.param_groups:
        if HAVE_APEX_OR_TE:
            group["step"] = step
        else:
            for weight in group["params"]:
                adamw.state[weight]["step"] = torch.tensor(float(step))


class Results:
    """What forked writers report, held in this process.

    The library's own queue (filesystem_async.py, `_get_write_results_queue`) is a server process
    that is spawned: it imports this whole program again, seconds on every rank, and outlives a
    rank that is killed. A pipe and a thread do the same.
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


class Saver:
    """Writes checkpoints of one run; every rank calls the same methods in the same order."""

    def __init__(
        self,
        run: resume.Run,
        options: Checkpoint,
        models: list[Any],
        optimizer: Any,
        saved_step: int | None,
    ) -> None:
        self._run, self._options = run, options
        self._models, self._optimizer = models, optimizer
        self._calls = AsyncCallsQueue()
        # Copies of a weight are written by one data parallel rank each, not all by the first.
        self._strategy = FullyParallelSaveStrategyWrapper(
            get_default_save_sharded_strategy(),
            parallel_state.get_data_parallel_group(with_context_parallel=True),
            do_cache_distribution=True,
        )
        filesystem_async._results_queue = Results()  # noqa: SLF001
        # Its writers say what went wrong, on every rank; our one line does.
        filesystem_async.logger.setLevel(logging.CRITICAL)
        self._reserve = run.dir / ".reserve"
        self._in_flight: tuple[resume.CheckpointDraft, dict[str, Any]] | None = None
        self._thread: threading.Thread | None = None
        self._problem: Stop | None = None
        self.saved_step = saved_step  # newest training step that is published or on its way

    @property
    def problem(self) -> Stop | None:
        """Why the last save failed on this rank; to be agreed on at the next training-step edge."""
        return self._problem

    def save(self, step: int, facts: dict[str, Any]) -> None:
        """Save this training step, unless it is saved already. Returns once it is staged."""
        if step == self.saved_step:
            return
        self.finish()
        self.saved_step = step
        draft = self._begin(step)
        if draft is None:
            return
        for model in self._models:  # what overlaps with the next forward pass has not arrived yet
            model.start_param_sync(force_sync=True)
        state = live_state(self._models, self._optimizer, self._options.format, loading=False)
        request = dist_checkpointing.save(
            state,
            str(draft.dir),
            self._strategy,
            validate_access_integrity=self._strategy.cached_distribution is None,
            async_sharded_save=True,
        )
        request.finalize_fns.insert(0, self._free_reserve)
        self._calls.schedule_async_request(request)
        self._in_flight = (draft, {**facts, "format": self._options.format})
        if self._options.mode == "sync":
            self.finish()

    def poll(self) -> None:
        """At the edge of a training step: seal and publish if the writers of all ranks are done."""
        self._finalize(blocking=False)

    def finish(self) -> None:
        """Wait for the save in flight."""
        self._finalize(blocking=True)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _begin(self, step: int) -> resume.CheckpointDraft | None:
        """The draft, if all ranks have it: what follows they must do together."""
        draft = None
        try:
            draft = self._run.begin_checkpoint(step)
            if self._run.rank == 0:
                self._reserve.write_bytes(bytes(RESERVE_BYTES))
        except (resume.CheckpointError, OSError) as error:
            self._problem = _as_stop(error)
        failed = torch.tensor(int(self._problem is not None), device=torch.cuda.current_device())
        dist.all_reduce(failed)
        return None if failed.item() else draft

    def _finalize(self, *, blocking: bool) -> None:
        if self._in_flight is None:
            return
        draft, facts = self._in_flight
        try:
            if not self._calls.maybe_finalize_async_calls(blocking=blocking):
                return
        except BaseException as error:  # noqa: BLE001  (the library's own is a BaseException)
            self._problem = _as_stop(self._full_disk(draft.dir) or error)
        else:
            arguments = (draft, facts)
            self._thread = threading.Thread(target=self._publish, args=arguments, daemon=True)
            self._thread.start()
        self._in_flight = None

    def _free_reserve(self) -> None:
        if self._run.rank == 0:
            self._reserve.unlink(missing_ok=True)

    def _full_disk(self, folder: Path) -> OSError | None:
        """What the disk says now: the library's writers lose the operating system's error."""
        probe = folder / f"probe.{self._run.rank}"
        try:
            probe.write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            return error
        finally:
            probe.unlink(missing_ok=True)
        return None

    def _publish(self, draft: resume.CheckpointDraft, facts: dict[str, Any]) -> None:
        try:
            draft.seal(_own_files(draft.dir, self._run.rank))
            draft.publish(facts)
        except resume.CheckpointError as error:
            self._problem = _as_stop(error)


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
