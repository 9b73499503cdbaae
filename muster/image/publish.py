"""A large file on shared storage that many nodes ask for at once: made by one, whole or not there.

What keeps it whole is not the lock. The file is made on local disk, copied beside its final name
and linked to it in one operation that refuses to replace anything; so a maker that dies at any
moment, or two makers at once, leave nothing half under the final name. The lock only saves seven of
eight nodes the work. It is a file that its owner touches, and not flock: file systems of clusters
are often mounted without it, and some then give it to everybody.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from muster.errors import CreateError, StorageError, TemporaryError
from muster.ordinary import require_ordinary

Make = Callable[[Path], None]
"""Makes the file in a folder on local disk under the given name."""
Whole = Callable[[Path], None]
"""Raises DataError for a file that is not whole."""

_PREFIX = "muster-image-"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class Patience:
    """Durations in seconds."""

    beat_s: float = 5.0  # between two signs of life of a maker
    silent_s: float = 60.0  # of a maker before another takes over
    poll_s: float = 1.0
    limit_s: float = 7200.0  # longest wait for another one's file


def publish(
    target: Path, make: Make, whole: Whole, local: Path, patience: Optional[Patience] = None
) -> bool:
    """See to it that `target` is there and whole; True: it was made here.

    Args:
        target: the final name, on shared storage.
        make: makes the file; called by one of all who ask.
        whole: proves a file.
        local: folder on local disk where it is made.
        patience: how long others are waited for.

    Raises:
        CreateError: no place for it.
        StorageError: its storage failed.
        TemporaryError: another one makes it, for longer than the limit.
        DataError: what is there, or was made, is not whole.
    """
    patience = patience or Patience()
    _require_place(target)
    with _turn(target, patience) as mine:
        if target.exists():  # also: whoever held the lock before us has made it
            whole(target)
            return False
        try:
            _sweep(local)
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_here()}-{os.getpid()}-", dir=local))
        except OSError as error:
            fix = "name a folder on local disk with --temp"
            raise CreateError(str(local), error.strerror or str(error), fix) from error
        try:
            made = folder / target.name
            make(made)
            whole(made)
            _put(made, target, mine)
            whole(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return True


def _require_place(target: Path) -> None:
    """Refuse, before anything is made, a name that the finished file could not get."""
    fix = "choose another --output"
    require_ordinary(target, fix)
    if target.is_symlink() and not target.exists():
        raise CreateError(str(target), "is a link that leads nowhere", fix)
    if not target.parent.is_dir():
        raise CreateError(str(target.parent), "is no folder", f"mkdir -p {target.parent}")
    try:
        _part(target, uuid.uuid4().hex).lstat()  # a longer name than that of the file
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CreateError(str(target), error.strerror or str(error), fix) from None


def _part(target: Path, mine: str) -> Path:
    return target.with_name(f".{target.name}.{mine}.part")


def _parts(target: Path) -> list[Path]:
    """All of a target, and none of another: a name may have blanks, dots, * and [ in it."""
    form = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.part")
    names = [entry.name for entry in os.scandir(target.parent)]
    return [target.with_name(name) for name in names if form.fullmatch(name)]


def _put(made: Path, target: Path, mine: str) -> None:
    """Copy beside the final name, then give it that name unless somebody has."""
    part = _part(target, mine)
    for left in _parts(target):
        left.unlink(missing_ok=True)  # of a maker that has died
    require_free(target.parent, made.stat().st_size, "choose another --output")
    try:
        with made.open("rb") as source, part.open("xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 24)
            copy.flush()
            os.fsync(copy.fileno())
        _name(part, target)
    except OSError as error:
        fix = "free space there, then again"
        raise StorageError(str(target), error.strerror or str(error), fix) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _name(part: Path, target: Path) -> None:
    """Never replace: on NFS a container that runs from the old file would lose it."""
    try:
        os.link(part, target)
    except FileExistsError:
        return  # somebody else's is as good
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not target.exists():
            part.rename(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems know no such thing
            raise
    finally:
        os.close(folder)


def require_free(folder: Path, num_bytes: float, fix: str) -> None:
    """Raises CreateError unless `folder` has that much free space, in bytes."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CreateError(str(folder), error.strerror or str(error), fix) from error
    if free < num_bytes:
        gib = 1 << 30
        what = f"{free / gib:.1f} GiB free, {num_bytes / gib:.1f} GiB needed"
        raise CreateError(str(folder), what, fix)


def _here() -> str:
    return socket.gethostname()


def _sweep(local: Path) -> None:
    """Remove what makers on this host left when they were killed."""
    for folder in local.glob(f"{_PREFIX}{_here()}-*-*"):
        pid = folder.name[len(f"{_PREFIX}{_here()}-") :].partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _turn(target: Path, patience: Patience) -> Iterator[str]:
    """Wait until it is ours, or the file is there; yields a word that no other maker has.

    The lock is a row of files NAME.lock.1, NAME.lock.2 ...: the highest number holds it. Whoever
    has seen no beat for long enough creates the next number, which only one can.
    """
    mine = uuid.uuid4().hex
    lock = _wait(target, patience)
    if lock is None:
        yield mine
        return
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(lock, stop, patience.beat_s), daemon=True)
    beat.start()
    try:
        yield mine
    finally:
        stop.set()
        beat.join()
        for other in sorted(_locks(target), key=_number):
            if _number(other) <= _number(lock):
                with contextlib.suppress(OSError):
                    other.unlink(missing_ok=True)


def _wait(target: Path, patience: Patience) -> Optional[Path]:
    """The lock file that is ours; None: the file is there, nobody has to make it."""
    end = time.monotonic() + patience.limit_s
    seen: tuple[str, float] = ("", 0.0)  # the newest lock and its time stamp, by the server's clock
    since = time.monotonic()  # when that changed, by ours
    while not target.exists():
        newest = max(_locks(target), key=_number, default=None)
        if newest is None:
            number = 1
        else:
            with contextlib.suppress(FileNotFoundError):
                now = (newest.name, newest.stat().st_mtime)
                if now != seen:
                    seen, since = now, time.monotonic()
            number = _number(newest) + 1
        silent_s = time.monotonic() - since
        if (newest is None or silent_s > patience.silent_s) and (lock := _create(target, number)):
            return lock
        if time.monotonic() > end:
            what = f"another node has been making it for more than {patience.limit_s:g} s"
            raise TemporaryError(str(target), what, "look at it there, or wait and try again")
        time.sleep(patience.poll_s)
    return None


def _locks(target: Path) -> list[Path]:
    start = f".{target.name}.lock."
    names = [entry.name for entry in os.scandir(target.parent) if entry.name.startswith(start)]
    return [target.with_name(name) for name in names if name[len(start) :].isdecimal()]


def _number(lock: Path) -> int:
    return int(lock.suffix[1:])


def _create(target: Path, number: int) -> Optional[Path]:
    lock = target.with_name(f".{target.name}.lock.{number}")
    try:
        with lock.open("x") as file:
            file.write(f"{_here()} {os.getpid()}\n")
    except FileExistsError:
        return None
    except OSError as error:
        fix = "choose an --output that you may write"
        raise CreateError(str(target.parent), error.strerror or str(error), fix) from error
    return lock


def _beat(lock: Path, stop: threading.Event, beat_s: float) -> None:
    while not stop.wait(beat_s):
        with contextlib.suppress(OSError):
            os.utime(lock)
