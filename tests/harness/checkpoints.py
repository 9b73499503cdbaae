"""Real checkpoints of a few small files, published as a recipe does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resume.draft import CheckpointDraft

SHARDS: dict[str, bytes] = {"shard_0.bin": b"0123456789" * 20, "deep/shard_1.bin": b"abc" * 7}


def draft(folder: Path, step: int, **facts: Any) -> CheckpointDraft:
    """A draft whose folder exists; facts: attempt, rank, world_size, token, keep."""
    whole = {"attempt": 1, "rank": 0, "world_size": 1, "token": 1, "keep": None, **facts}
    one = CheckpointDraft(
        checkpoints_dir=folder, step=step, owner_file=folder.parent / "owner.json", **whole
    )
    one.dir.mkdir(parents=True, exist_ok=True)
    return one


def write(one: CheckpointDraft, shards: Mapping[str, bytes] = SHARDS) -> list[Path]:
    """Put files into a draft; returns them."""
    files = [one.dir / name for name in shards]
    for path, content in zip(files, shards.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def publish(
    folder: Path, step: int, shards: Mapping[str, bytes] = SHARDS, meta: Any = None, **facts: Any
) -> Path:
    """A published checkpoint of one rank; returns its folder."""
    one = draft(folder, step, **facts)
    one.seal(write(one, shards))
    one.publish(meta)
    return one.published
