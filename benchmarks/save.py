"""One process that saves a state of some gigabytes both ways; prints {"alone", "sealed"} as JSON.

python save.py FOLDER ROUNDS GIGABYTES
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

import resume
from checkpoint import Saver
from config import Checkpoint


def alone(folder: Path, state: dict[str, torch.Tensor]) -> float:
    """Seconds of a save that ends on the disk."""
    began = time.perf_counter()
    state_dict_saver.save(state, storage_writer=FileSystemWriter(folder, sync_files=True))
    return time.perf_counter() - began


def sealed(run: resume.Run, state: dict[str, torch.Tensor], step: int) -> float:
    """Seconds of the same through the recipe's own saver, until it is published."""
    options = Checkpoint(every=1, mode="sync")
    saver = Saver(run, options, state, dist.new_group(backend="gloo"), None)
    began = time.perf_counter()
    saver.save(step, {"run": {}})
    took = time.perf_counter() - began
    if saver.problem is not None or not run.wait_published(step, 1):
        raise RuntimeError(f"not published: {saver.problem}")
    return took


def main() -> None:
    """In turns; what was written is removed, and the disk is quiet before the next."""
    out, rounds, gigabytes = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    num = 32
    shape = (int(gigabytes * 1e9 / 4 / num / 1024), 1024)
    state = {f"layer{i}": torch.randn(shape) for i in range(num)}
    run = resume.Run.from_env()
    found: dict[str, list[float]] = {"alone": [], "sealed": []}
    for number in range(rounds + 1):  # the first one warms up
        for name in ("alone", "sealed") if number % 2 else ("sealed", "alone"):
            os.sync()
            if name == "alone":
                took = alone(out / "alone", state)
                shutil.rmtree(out / "alone")
            else:
                took = sealed(run, state, number + 1)
                shutil.rmtree(run.checkpoints_dir)
            found[name] += [took] if number else []
    print(json.dumps(found))


if __name__ == "__main__":
    main()
