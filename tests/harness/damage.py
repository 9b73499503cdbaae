"""Ways in which a checkpoint is damaged, by name; each takes the checkpoint's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def largest_shard(folder: Path) -> Path:
    """The file with most bytes, the manifest aside."""
    files = [p for p in folder.iterdir() if p.is_file() and p.name != "manifest.json"]
    return max(files, key=lambda path: path.stat().st_size)


def _flip(folder: Path) -> None:
    shard = largest_shard(folder)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0x10
    shard.write_bytes(content)


def _truncate(folder: Path) -> None:
    shard = largest_shard(folder)
    shard.write_bytes(shard.read_bytes()[:-1])


def _truncate_manifest(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped byte": _flip,
    "truncated shard": _truncate,
    "missing shard": lambda folder: largest_shard(folder).unlink(),
    "zero-length shard": lambda folder: os.truncate(largest_shard(folder), 0),
    "missing metadata": lambda folder: (folder / "manifest.json").unlink(),
    "truncated metadata": _truncate_manifest,
}
