"""What a hand-made batch script does for itself: names for torch, and the newest checkpoint.

For the floor and for the others' ways of keeping a job going; `muster run` does it by itself.

    srun python launch.py train.py train.steps=60
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path


def newest_checkpoint(folder: Path) -> Path | None:
    """By its number; not verified, as everybody does it."""
    found = sorted(path for path in folder.glob("step_????????") if path.is_dir())
    return found[-1] if found else None


def environment(given: dict[str, str]) -> dict[str, str]:
    """Variables of the contract. torchrun has set torch's own already; srun has not."""
    own = {
        "RANK": given.get("SLURM_PROCID", "0"),
        "LOCAL_RANK": given.get("SLURM_LOCALID", "0"),
        "WORLD_SIZE": given.get("SLURM_NTASKS", "1"),
    }
    if "TORCHELASTIC_RUN_ID" in given:
        own = {}
    newest = newest_checkpoint(Path(given["MUSTER_RUN_DIR"], "checkpoints"))
    # Only the first start saves, and there all ranks have the same number; later ones tell theirs
    # apart by the time.
    attempt = "1" if newest is None else str(int(time.time() * 1000))
    return {**own, "MUSTER_RESUME": str(newest or ""), "MUSTER_ATTEMPT": attempt}


def main() -> None:
    """Become the program."""
    os.environ.update(environment(dict(os.environ)))
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
