"""`python3 -m resume save STEP FILE...`: sentence 2 of the contract for trainers not in Python.

One process saves files that exist already: they are moved into the checkpoint, sealed, published.
"""

import sys
from pathlib import Path

from resume.run import Run


def main(argv: list[str]) -> int:
    """Save one checkpoint for a world of one rank; returns 0, or 64 when called wrongly."""
    if len(argv) < 3 or argv[0] != "save" or not argv[1].isdigit():
        print("usage: python3 -m resume save STEP FILE...", file=sys.stderr)
        return 64
    draft = Run.from_env().begin_checkpoint(int(argv[1]))
    moved = [Path(name).rename(draft.dir / Path(name).name) for name in argv[2:]]
    draft.seal(moved)
    draft.publish()
    return 0


sys.exit(main(sys.argv[1:]))
