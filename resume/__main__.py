"""`python3 -m resume save STEP FILE...`: sentence 2 of the contract for trainers not in Python.

One process saves files that exist already: they are moved into the checkpoint, sealed, published.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from resume.checkpoint import CheckpointError, Fenced, StorageError
from resume.run import Run

CODES = {Fenced: 75, StorageError: 74}


def main(argv: list[str]) -> int:
    """Save one checkpoint for a world of one rank; returns 0, or a code of exit_codes.md."""
    if len(argv) < 3 or argv[0] != "save" or not argv[1].isdecimal():
        print("usage: python3 -m resume save STEP FILE...", file=sys.stderr)
        return 64
    names = [Path(name).name for name in argv[2:]]
    twice = [name for name in names if names.count(name) > 1]
    links = [name for name in argv[2:] if Path(name).is_symlink()]
    if twice or links:
        what = f"{twice[0]}: two files of one name" if twice else f"{links[0]}: a link, no file"
        print(f"resume save: {what}. Fix: give each file itself, once", file=sys.stderr)
        return 64
    missing = [name for name in argv[2:] if not Path(name).is_file()]
    if missing:
        print(f"resume save: {missing[0]}: no such file. Fix: write it first", file=sys.stderr)
        return 65
    for number in (signal.SIGTERM, signal.SIGUSR2):  # whoever is to leave saves first
        signal.signal(number, signal.SIG_IGN)
    os.environ.pop("MUSTER_BEAT_DIR", None)  # the trainer beats: signals are for its process
    try:
        _save(Run.from_env(), int(argv[1]), [Path(name) for name in argv[2:]])
    except CheckpointError as error:
        print(f"resume save: {error}", file=sys.stderr)
        return CODES.get(type(error), 1)
    return 0


def _save(run: Run, step: int, files: list[Path]) -> None:
    draft = run.begin_checkpoint(step)
    try:
        moved = [Path(shutil.move(path, draft.dir / path.name)) for path in files]
    except OSError as error:
        raise StorageError(f"checkpoint {draft.dir.name}: {error}") from error
    draft.seal(moved)
    draft.publish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
