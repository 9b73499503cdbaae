"""A Python whose torch is broken to order, as a broken GPU or cable would break its results."""

from __future__ import annotations

import sys
from pathlib import Path

# Read by every Python that has the folder on its PYTHONPATH, before its program.
_SITECUSTOMIZE = """\
import time
import torch
import torch.distributed as dist

real_matmul, real_all_reduce = torch.matmul, dist.all_reduce
calls = 0


def matmul(*arguments):
    global calls
    product = real_matmul(*arguments)
    calls += 1
    if {corrupt} and calls == 3:  # one bit, once
        product.view(torch.int32)[1, 2] ^= 1 << 20
    return product


def all_reduce(tensor, *arguments, **keywords):
    if {hang}:
        time.sleep(3600)
    done = real_all_reduce(tensor, *arguments, **keywords)
    if {corrupt}:
        tensor[5] += 1
    return done


torch.matmul, dist.all_reduce = matmul, all_reduce
"""


def make(folder: Path, *, hosts: str = "*", corrupt: bool = False, hang: bool = False) -> Path:
    """A program that is this Python; on hosts that match (a pattern of bash) its torch is sick."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _SITECUSTOMIZE.format(corrupt=corrupt, hang=hang)
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    program = folder / "python"
    program.write_text(
        f"#!/bin/bash\n[[ $(hostname) != {hosts} ]] || export PYTHONPATH={folder}\n"
        f'export OMP_NUM_THREADS=1\nexec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program
