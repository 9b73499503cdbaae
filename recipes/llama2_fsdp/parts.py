"""The work of preparing, cut into parts that are done once: by several processes, across kills.

What a part is follows from the files alone, and the parts are put together in order, so the result
is the same whatever the number of processes. A part that is done is a folder with its final name;
a process that is killed leaves only a folder whose name says that it is not done.
"""

import hashlib
import os
import shutil
import signal
import socket
import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np

from documents import Piece, documents, pieces
from errors import Stop
from megatron_index import token_dtype
from tokenizer import Tokenizer, load_tokenizer

BATCH_CHARS = 1 << 22  # text that is tokenized at once: enough for all cores, little memory
TRAIN, VALIDATION = "tokens", "validation"
Part = tuple[Piece, ...]


@dataclass(frozen=True)
class Task:
    """What is the same for all parts."""

    folder: Path  # of the parts that are done
    tokenizer: Path
    end: str | None
    field: str
    validation: float  # share of the documents that is never trained on


class Told(Stop):
    """What another process has said already as one line."""

    def __init__(self, code: int, line: str) -> None:
        Exception.__init__(self, line)
        self.code = code


def plan(files: list[Path], part_bytes: int) -> list[Part]:
    """Neighbouring pieces of files, together about that many bytes; in order."""
    found: list[Part] = []
    waiting: list[Piece] = []
    num_bytes = 0
    for piece in (piece for path in files for piece in pieces(path, part_bytes)):
        waiting.append(piece)
        num_bytes += piece.num_bytes
        if num_bytes >= part_bytes:
            found.append(tuple(waiting))
            waiting, num_bytes = [], 0
    return [*found, tuple(waiting)] if waiting else found


def part_name(number: int) -> str:
    """Name of the folder of a part that is done."""
    return f"{number:06d}"


def parts_done(task: Task, num_parts: int) -> set[int]:
    """Numbers of the parts that are there."""
    have = {path.name for path in task.folder.iterdir()}
    return {number for number in range(num_parts) if part_name(number) in have}


def make_all(task: Task, parts: list[Part], needed: list[int], workers: int) -> Iterator[int]:
    """Make the parts of these numbers; yields each, in order, once it is there.

    Raises:
        Stop: of the first part, in order, that cannot be made. Those that were done stay.
    """
    workers = min(workers, len(needed))
    if workers < 2:
        tokenizer = load_tokenizer(task.tokenizer, task.end)  # which uses all cores by itself
        for number in needed:
            make(task, number, parts[number], tokenizer)
            yield number
        return
    # Not forked: a tokenizer with threads does not survive that.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker) as pool:
        running = [pool.submit(_in_worker, task, number, parts[number]) for number in needed]
        try:
            for number, future in zip(needed, running, strict=True):
                if (problem := future.result()) is not None:
                    raise Told(*problem)
                yield number
        except BrokenProcessPool:
            what = "a worker was killed, perhaps for want of memory"
            raise Stop(
                Stop.CRASH, "prepare.py", what, "give it again, with fewer --workers"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_tokenizer: list[Tokenizer] = []  # of this worker, loaded once


def _begin_worker() -> None:
    """Do not outlive the process that gives out the work."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core already
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_worker(task: Task, number: int, part: Part) -> tuple[int, str] | None:
    """A Stop does not travel between processes, its code and its line do."""
    try:
        if not _tokenizer:
            _tokenizer.append(load_tokenizer(task.tokenizer, task.end))
        make(task, number, part, _tokenizer[0])
    except Stop as stop:
        return stop.code, str(stop)
    except OSError as error:
        fix = "free space there, or name another folder with --out"
        return Stop.STORAGE, str(Stop(Stop.STORAGE, f"prepare.py: {task.folder}", str(error), fix))
    return None


def make(task: Task, number: int, part: Part, tokenizer: Tokenizer) -> None:
    """Tokenize one part: for each split a file of tokens and one with the documents' lengths."""
    done = task.folder / part_name(number)
    if done.exists():
        return  # made by another node meanwhile
    writing = own_name(done)
    writing.mkdir()
    try:
        _write(task, part, tokenizer, writing)
        writing.rename(done)
    except OSError:
        if not done.exists():  # else another node was faster, with the same result
            raise
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _write(task: Task, part: Part, tokenizer: Tokenizer, folder: Path) -> None:
    dtype = token_dtype(tokenizer.vocab_size)
    lengths = {TRAIN: array("i"), VALIDATION: array("i")}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in lengths}
        for batch in _batches(task, part):
            for text, ids in zip(batch, tokenizer.encode(batch), strict=True):
                split = VALIDATION if held_out(text, task.validation) else TRAIN
                files[split].write(np.array([*ids, tokenizer.end], dtype=dtype).tobytes())
                lengths[split].append(len(ids) + 1)
    for name, values in lengths.items():
        (folder / f"{name}.len").write_bytes(values.tobytes())
    for path in folder.iterdir():
        sync(path)


def held_out(text: str, share: float) -> bool:
    """Whether a document is for validation: its own text decides, so its copies go the same way."""
    if not share:
        return False
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return number < share * 2**64


def _batches(task: Task, part: Part) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for piece in part:
        for text in documents(piece, task.field):
            batch.append(text)
            chars += len(text)
            if chars >= BATCH_CHARS:
                yield batch
                batch, chars = [], 0
    if batch:
        yield batch


def own_name(path: Path) -> Path:
    """A name beside it that no other process on any node uses."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Delete what killed runs on this node left; those of other nodes may still be written."""
    for path in folder.glob(f".*.{socket.gethostname()}.*.tmp"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def remove_own(folder: Path) -> None:
    """Delete what this process has begun there and will not finish."""
    for path in folder.glob(f".*.{socket.gethostname()}.{os.getpid()}.tmp"):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force a file, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
