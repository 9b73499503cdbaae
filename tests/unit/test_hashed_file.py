"""A file that is hashed while it is written: the right bytes, the right checksum, no silence."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resume.hashed_file import HashedFile


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.lists(st.sampled_from([0, 1, 1000, 1 << 20, (4 << 20) + 1]), max_size=6))
def test_checksum_is_that_of_the_file(sizes: list[int], tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with HashedFile(path) as file:
        for size in sizes:
            file.write(os.urandom(size))
        assert file.tell() == sum(sizes)
    content = path.read_bytes()
    assert len(content) == sum(sizes)
    assert file.still_is(path)
    assert file.sha256 == hashlib.sha256(content).hexdigest()


def test_memory_may_be_used_again_as_soon_as_it_is_written(tmp_path: Path) -> None:
    scratch = bytearray(b"a" * (2 << 20))
    with HashedFile(tmp_path / "shard") as file:
        for letter in b"abcdefgh":
            scratch[:] = bytes([letter]) * len(scratch)
            file.write(scratch)
    assert file.sha256 == hashlib.sha256((tmp_path / "shard").read_bytes()).hexdigest()


def test_cannot_seek(tmp_path: Path) -> None:
    with HashedFile(tmp_path / "shard") as file, pytest.raises(io.UnsupportedOperation):
        file.seek(0)


def test_file_that_cannot_be_made_is_an_error_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(FileNotFoundError):
        HashedFile(tmp_path / "no folder" / "shard")
    assert threading.active_count() == before


def test_full_disk_is_an_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    file = HashedFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        file.write(b"x" * (3 << 20))
    with pytest.raises(OSError):  # noqa: PT011  (no space; or the device cannot be forced to disk)
        file.close()
    assert threading.active_count() == before


def test_file_that_somebody_shortens_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    file = HashedFile(path)
    file.write(b"x" * 1000)
    os.truncate(path, 0)
    file.write(b"x" * (2 << 20))
    os.truncate(path, 10)
    content = path.read_bytes()
    try:
        file.close()
    except OSError:
        return
    assert file.sha256 != hashlib.sha256(content).hexdigest()  # then no reader accepts it
