"""Squashfs files for tests: a head that says how long the file is, and that many bytes."""

from __future__ import annotations

import struct
from pathlib import Path


def write_squash(path: Path, size: int = 5000, missing: int = 0) -> None:
    """A file that passes for a squashfs of `size` bytes, of which the last are missing."""
    head = b"hsqs" + bytes(36) + struct.pack("<Q", size)
    path.write_bytes((head + bytes(size))[: size - missing])
