"""Ways in which a checkpoint is damaged; each takes the checkpoint's folder."""

from __future__ import annotations

from pathlib import Path


def largest_shard(folder: Path) -> Path:
    """The file with most bytes, the manifest aside."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    return max(files, key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    """One bit of a byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path, num_bytes: int = 1) -> None:
    """The last bytes are missing."""
    path.write_bytes(path.read_bytes()[:-num_bytes])
