"""Save whole, in the background; load into a model that is already sharded.

torch.distributed.checkpoint writes the shards, `resume` seals and publishes them. A save copies the
state to host memory first (staging), so later training steps cannot change what is being written;
then a thread writes, seals and publishes while training goes on. At most one save is in flight.
"""

import contextlib
import io
import os
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future as TorchFuture

import resume
from config import Checkpoint
from errors import Stop
from optimizers import state_of
from resume.checkpoint import read_manifest

State = dict[str, Any]


def live_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Flat names to the tensors that training changes: weights and the optimizer's state.

    Plain names instead of nested framework state: what a checkpoint holds can be read off its
    index. The optimizer's state is created where it is missing, zero as torch itself would.
    """
    state: State = {}
    for name, parameter in model.named_parameters():
        state[f"model.{name}"] = parameter.detach()
        state |= state_of(optimizer, name, parameter)
    return state


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


def load(
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    num_updates: int,
    group: dist.ProcessGroup,
) -> None:
    """Fill model and optimizer in place; the world size may differ from the one that saved.

    `num_updates`: of this optimizer so far, one for each training step; 0: its state begins anew,
    and only the weights are read.
    """
    reader = FileSystemReader(path)
    state = live_state(model, optimizer)
    if num_updates == 0:
        state = {name: tensor for name, tensor in state.items() if name.startswith("model.")}
    state_dict_loader.load(state, storage_reader=reader, process_group=group)
    for slots in optimizer.state.values():
        slots["step"].fill_(num_updates)


class Shards(FileSystem):
    """Files that are hashed while they are written: sealing them reads nothing again."""

    def __init__(self, draft: resume.CheckpointDraft) -> None:
        super().__init__()
        self._draft = draft

    @contextlib.contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        """As the base class; .metadata is small and renamed later, so it is written as ever."""
        name = Path(path).name
        if mode == "wb" and name.endswith(".distcp"):
            with self._draft.open(name) as stream:
                yield stream
        else:
            with super().create_stream(path, mode) as stream:
                yield stream


class Writer(FileSystemWriter):
    """Hashes while it writes, and says that the disk failed where torch.save hides it.

    When a write fails, torch's archive writer complains about its position in the file, and the
    operating system's error is only the context of that; between ranks even the context is lost.
    """

    def __init__(self, draft: resume.CheckpointDraft) -> None:
        super().__init__(draft.dir, sync_files=False)  # sealing forces the files to disk
        self.fs = Shards(draft)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """As the base class, but a full disk is a StorageError."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, OSError):
                    raise resume.StorageError(str(cause)) from error
                cause = cause.__cause__ or cause.__context__
            raise


class Saver:
    """Writes checkpoints of one run; every rank calls the same methods in the same order."""

    def __init__(
        self,
        run: resume.Run,
        options: Checkpoint,
        state: State,
        group: dist.ProcessGroup,
        saved_step: int | None,
    ) -> None:
        """The group must carry nothing else: it is used from a background thread."""
        self._run, self._options, self._state, self._group = run, options, state, group
        self._staged: State | None = None
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
        draft = None
        try:
            draft = self._run.begin_checkpoint(step)
        except resume.CheckpointError as error:  # maybe on this rank alone: a full disk
            self._problem = _as_stop(error)
        if self._options.mode == "sync":
            if self._all_have(draft):  # or the others would wait for this rank inside the save
                self._write(draft, self._state, facts)
        elif draft is not None:
            arguments = (draft, self._stage(), facts)
            self._thread = threading.Thread(target=self._write, args=arguments, daemon=True)
            self._thread.start()

    def _all_have(self, draft: resume.CheckpointDraft | None) -> TypeGuard[resume.CheckpointDraft]:
        missing = torch.tensor(int(draft is None))
        dist.all_reduce(missing, group=self._group)
        return missing.item() == 0

    def finish(self) -> None:
        """Wait for the save in flight."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _stage(self) -> State:
        """Copy the state to host memory that is allocated once; pinned when it comes from a GPU."""
        if self._staged is None:
            self._staged = {name: _host_twin(tensor) for name, tensor in self._state.items()}
        for name, tensor in self._state.items():
            _local(self._staged[name]).copy_(_local(tensor), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self._staged

    def _write(self, draft: resume.CheckpointDraft, state: State, facts: dict[str, Any]) -> None:
        try:
            writer = Writer(draft)
            if self._options.mode == "process":
                self._save_in_process(state, writer)
            else:
                state_dict_saver.save(state, storage_writer=writer, process_group=self._group)
            draft.seal(_own_files(draft.dir, self._run.rank))
            draft.publish(facts)
        except BaseException as error:  # noqa: BLE001  (DCP's own is a BaseException)
            self._problem = _as_stop(error)

    def _save_in_process(self, state: State, writer: Writer) -> None:
        from torch.distributed.checkpoint.staging import AsyncStager  # noqa: PLC0415

        class Staged(AsyncStager):
            """The state is staged already."""

            should_synchronize_after_execute = False

            def stage(self, state_dict: State) -> State:
                return state_dict

            def synchronize_staging(self) -> None:
                """Nothing to wait for."""

            def close(self) -> None:
                """Nothing to give back."""

        future = state_dict_saver.async_save(
            state,
            storage_writer=writer,
            process_group=self._group,
            async_checkpointer_type=state_dict_saver.AsyncCheckpointerType.PROCESS,
            async_stager=Staged(),
        )
        if not isinstance(future, Future):
            future = future.upload_completion
        future.result()


def _own_files(folder: Path, rank: int) -> Iterator[Path]:
    yield from sorted(folder.glob(f"__{rank}_*.distcp"))
    if rank == 0:
        yield folder / ".metadata"


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _host_twin(tensor: Tensor) -> Tensor:
    """Host memory for the local part, under the same global shape and placement."""
    local = _local(tensor)
    host = torch.empty_like(local, device="cpu", pin_memory=local.is_cuda)
    if not isinstance(tensor, DTensor):
        return host
    return DTensor.from_local(
        host,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _as_stop(error: BaseException) -> Stop:
    """One line for whoever reads the log, and a code that says whether the node is to blame."""
    causes = [error]
    if isinstance(error, CheckpointException):
        causes += [cause for cause, _ in error.failures.values()]
    for cause in causes:
        if isinstance(cause, resume.Fenced):
            return Stop(
                Stop.TEMPORARY, "checkpoint", str(cause), "nothing: the newer attempt goes on"
            )
        if isinstance(cause, (resume.StorageError, OSError)):
            fix = "free or repair the disk that holds RUN_DIR, then submit again"
            return Stop(Stop.STORAGE, "checkpoint", str(cause), fix)
    text = " ".join(str(cause).strip().splitlines()[-1] for cause in causes[-1:])
    return Stop(Stop.CRASH, "checkpoint", f"{type(error).__name__}: {text}", "see this rank's log")
