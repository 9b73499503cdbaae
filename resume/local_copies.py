"""The nearest tier: what a node's own ranks wrote, once more on the node's own disk.

    SCRATCH/muster-<uid>/<nonce of the run>/
        run -> RUN_DIR
        step_00000500/shard_0.bin       a copy of what a rank of this node has written
        step_00000500/shard_1.bin ->    all else, and the manifest: links to the shared file system

So a rank finds a whole checkpoint under either name. Copies are made only of what was verified on
the shared file system, by a process of the lowest priority, and read back; before a resume they are
read again and compared with the same manifest. A node that has none, or damaged ones, as after a
replacement, resumes from the shared file system: nothing depends on them but time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from resume import checkpoint, preflight
from resume.caretaker import lowest_priority
from resume.durable import fsync_dir, fsync_file
from resume.private_folder import own_folder

_READERS = 4


@dataclass(frozen=True)
class Source:
    """A checkpoint on the shared file system, as the supervisor has verified it."""

    path: Path
    sha256: str  # of its manifest's body

    def files(self) -> dict[str, Any]:
        """{name: facts}, as the manifest says.

        Raises:
            OSError: it is not there, or another one of that name is.
        """
        body, _ = checkpoint.read_manifest(self.path)
        if body is None or checkpoint.digest_body(body) != self.sha256:
            raise FileNotFoundError(f"{self.path} is not what it was")
        return dict(body["files"])


def run_folder(scratch: Path, nonce: str) -> Path:
    """Where the copies of one run are, on every node."""
    return scratch / f"muster-{os.getuid()}" / nonce


def keep(source: Source, ranks: set[int], folder: Path, reserve_bytes: int) -> int:
    """Copy what these ranks have written; older copies go. Returns the bytes, 0: they wrote none.

    Raises:
        OSError: no space, or a disk that does not hold what was written to it.
    """
    files = source.files()
    own = {name for name, fact in files.items() if fact.get("rank") in ranks}
    num_bytes = sum(int(files[name]["bytes"]) for name in own)
    if not own:
        return 0
    own_folder(folder.parent)
    own_folder(folder)
    forget_others(folder)
    run = folder / "run"
    if not run.is_symlink():
        run.symlink_to(source.path.parents[1])
    free = preflight.free_bytes(folder) - reserve_bytes
    if free < num_bytes:
        raise OSError(f"{folder}: {preflight.size(max(free, 0))} may be used, {num_bytes} needed")
    draft, target = folder / f"{source.path.name}.tmp", folder / source.path.name
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name in (*files, checkpoint.MANIFEST):
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        if name in own:
            _copy(source.path / name, draft / name, files[name]["sha256"])
        else:
            (draft / name).symlink_to(source.path / name)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    fsync_dir(folder)
    for old in folder.glob("step_*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return num_bytes


def _copy(source: Path, target: Path, sha256: str) -> None:
    shutil.copyfile(source, target)
    fsync_file(target)
    if checkpoint.digest_file(target, fresh=True) != sha256:
        raise OSError(f"{target} is not what was copied")


def usable(source: Source, folder: Path, deadline: float) -> Optional[Path]:
    """The copy of a checkpoint on this node, read and compared; None: there is no good one.

    A damaged one is removed.

    Args:
        source: what it has to be a copy of.
        folder: of the run, on this node's disk.
        deadline: monotonic time after which the shared file system is quicker.
    """
    mine = folder / source.path.name
    if not mine.is_dir():
        return None
    problem = _problem(source, mine, deadline)
    if problem is None:
        return mine
    print(f"muster guard: {mine}: {problem}", file=sys.stderr, flush=True)
    if time.monotonic() <= deadline:
        shutil.rmtree(mine, ignore_errors=True)
    return None


def _problem(source: Source, mine: Path, deadline: float) -> Optional[str]:
    files = source.files()
    found = checkpoint.sizes(mine)
    if set(found) != {*files, checkpoint.MANIFEST}:
        return "files are missing or not sealed"
    linked = [name for name, num_bytes in found.items() if num_bytes is None]
    if any((mine / name).readlink() != source.path / name for name in linked):
        return "a link leads elsewhere"
    if checkpoint.MANIFEST not in linked:
        return "has a manifest of its own"

    def differs(name: str) -> Optional[str]:
        if time.monotonic() > deadline:
            return "could not be read in time"
        good = checkpoint.digest_file(mine / name) == files[name]["sha256"]
        return None if good else f"{name} does not match its checksum"

    with ThreadPoolExecutor(_READERS) as pool:
        problems = list(pool.map(differs, sorted(set(found) - set(linked))))
    return next((problem for problem in problems if problem is not None), None)


def forget_others(folder: Path) -> None:
    """Remove copies of runs that are complete or gone: nobody resumes from them."""
    for other in folder.parent.iterdir():
        run = other / "run"
        if other != folder and run.is_symlink() and (not run.exists() or (run / "DONE").exists()):
            shutil.rmtree(other, ignore_errors=True)


def add_parser(verbs: Any) -> None:
    """`muster keep-local`, which guards start."""
    one = verbs.add_parser("keep-local", help=argparse.SUPPRESS)
    one.add_argument("checkpoint", type=Path)
    one.add_argument("--sha256", required=True)
    one.add_argument("--ranks", required=True, help="numbers with commas between")
    one.add_argument("--folder", type=Path, required=True)
    one.add_argument("--reserve-bytes", type=int, required=True)
    one.set_defaults(func=_main, verb="keep-local")


def _main(arguments: argparse.Namespace) -> int:
    lowest_priority()
    ranks = {int(rank) for rank in arguments.ranks.split(",")}
    source = Source(arguments.checkpoint, arguments.sha256)
    try:
        keep(source, ranks, arguments.folder, arguments.reserve_bytes)
    except OSError as error:
        print(f"muster keep-local: {error}. Fix: none is needed", file=sys.stderr)
        return 74
    return 0
