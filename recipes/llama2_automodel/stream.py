"""Tokens read by ranges, from S3 or a shared file system, through a bounded cache on the node.

The cache is a folder of slots, each a file of 64 KiB: which slot a block of tokens may lie in
follows from its number and what it belongs to. So the cache is as large as its slots and no larger,
nothing has to be counted or cleaned up, and a rank that is killed leaves a whole slot or the old
one. Every block carries a checksum; one that is damaged is fetched again. The ranks of a node share
the folder: a lock lets one of them fetch what several want.
"""

import fcntl
import hashlib
import os
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from errors import Stop

SLOT_BYTES = 1 << 16
HEADER = struct.Struct("<32sQII16x")  # what it belongs to, number of the block, bytes, checksum
BLOCK_BYTES = SLOT_BYTES - HEADER.size
LOCKS = 4096
ATTEMPTS = 8  # at a request, with growing pauses: about a minute
AHEAD = 8  # blocks that are fetched at once before they are needed


class Source(Protocol):
    """A file that is read by ranges."""

    def size(self) -> int:
        """Its bytes."""

    def read(self, first: int, num_bytes: int) -> bytes:
        """That many bytes from there on."""


class FileSource:
    """A file of a shared file system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    def size(self) -> int:
        """Its bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, first: int, num_bytes: int) -> bytes:
        """That many bytes from there on.

        Raises:
            Stop: the file system fails (74).
        """
        try:
            return os.pread(self._descriptor, num_bytes, first)
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            raise Stop(Stop.STORAGE, f"data {self._path}", what, "look after it") from None


class S3Source:
    """An object in S3, or in a server that speaks its protocol.

    Credentials, region and endpoint are found by boto3 itself: environment (AWS_ENDPOINT_URL_S3),
    ~/.aws, or the role of the machine.
    """

    def __init__(self, url: str) -> None:
        """Look at the object.

        Raises:
            FileNotFoundError: there is none.
            Stop: boto3 is missing (69), S3 does not answer or refuses (74).
        """
        self._url = url
        self._client = _client(url)
        bucket, _, key = url.removeprefix("s3://").partition("/")
        self._object = {"Bucket": bucket, "Key": key}
        with _asking(url):
            head = self._client.head_object(**self._object)
        self._size, self._tag = int(head["ContentLength"]), head["ETag"]

    def size(self) -> int:
        """Its bytes."""
        return self._size

    def read(self, first: int, num_bytes: int) -> bytes:
        """That many bytes from there on.

        Raises:
            Stop: S3 fails (74), or the object has been replaced since it was opened (65).
        """
        wanted = f"bytes={first}-{first + num_bytes - 1}"
        with _asking(self._url):
            answer = self._client.get_object(**self._object, Range=wanted)
            found: bytes = answer["Body"].read()
        if answer["ETag"] != self._tag:
            fix = "start a new run, or put the old object back"
            raise Stop(Stop.DATA, f"data {self._url}", "has been replaced", fix)
        return found


_clients: dict[int, Any] = {}  # one of each process: a fork must not share connections


def _client(url: str) -> Any:
    try:
        import boto3  # noqa: PLC0415  (only for data in S3)
        from botocore.config import Config  # noqa: PLC0415
    except ImportError:
        what = "the Python package boto3 is not installed"
        raise Stop(Stop.UNAVAILABLE, f"data {url}", what, "pip install boto3") from None
    if os.getpid() not in _clients:
        attempts = int(os.environ.get("AWS_MAX_ATTEMPTS") or ATTEMPTS)
        retries: Any = {"max_attempts": attempts, "mode": "standard"}
        config = Config(
            connect_timeout=10, read_timeout=60, retries=retries, max_pool_connections=2 * AHEAD
        )
        with _asking(url):
            _clients[os.getpid()] = boto3.client("s3", config=config)
    return _clients[os.getpid()]


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn what goes wrong with S3 into one line; of an error only its code is told."""
    from botocore.exceptions import (  # noqa: PLC0415
        BotoCoreError,
        ClientError,
        NoCredentialsError,
    )

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        if code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
            raise FileNotFoundError(2, "not found", url) from None
        fix = "look at the rights of the bucket and at the service"
        raise Stop(Stop.STORAGE, f"data {url}", f"S3 says {code}", fix) from None
    except NoCredentialsError:
        fix = "see how boto3 finds credentials: environment, ~/.aws, role of the machine"
        raise Stop(Stop.CONFIG, f"data {url}", "there are no credentials", fix) from None
    except (BotoCoreError, OSError) as error:
        what = f"S3 does not answer: {type(error).__name__}"
        fix = "look at network, endpoint and credentials"
        raise Stop(Stop.STORAGE, f"data {url}", what, fix) from None


class Cache:
    """Slots in a folder of the node's own disk."""

    def __init__(self, folder: str, gib: float) -> None:
        """Make the folder.

        Raises:
            Stop: it cannot be written, or holds less than a slot (78).
        """
        where = "data.cache"
        self._folder = Path(os.path.expandvars(folder)).expanduser()
        self._slots = int(gib * 2**30) // SLOT_BYTES
        if not self._folder.is_absolute():
            what = f"{self._folder} is not absolute"
            raise Stop(Stop.CONFIG, where, what, "name a folder on the node's own disk")
        if self._slots < 1:
            raise Stop(Stop.CONFIG, "data.cache_gib", f"{gib} holds nothing", "make it larger")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "locks").mkdir(exist_ok=True)
        except OSError as error:
            what = f"{self._folder} cannot be written: {error.strerror}"
            raise Stop(Stop.CONFIG, where, what, "name a folder on the node's own disk") from None
        self._told = False
        self._remove_leftovers()

    def get(self, owner: bytes, number: int) -> bytes | None:
        """A block, if its slot holds it whole."""
        try:
            slot = self._path(owner, number).read_bytes()
            whose, which, num_bytes, checksum = HEADER.unpack_from(slot)
        except (OSError, struct.error):
            return None
        block = slot[HEADER.size : HEADER.size + num_bytes]
        same = (whose, which, len(block)) == (owner, number, num_bytes)
        return block if same and zlib.crc32(block) == checksum else None

    def put(self, owner: bytes, number: int, block: bytes) -> None:
        """Put a block into its slot. A cache that fails makes training slower, not impossible."""
        path = self._path(owner, number)
        writing = self._folder / f".{os.getpid()}.{threading.get_ident()}.tmp"
        header = HEADER.pack(owner, number, len(block), zlib.crc32(block))
        try:
            path.parent.mkdir(exist_ok=True)
            writing.write_bytes(header + block)
            writing.replace(path)
        except OSError as error:
            writing.unlink(missing_ok=True)
            if not self._told:
                self._told = True
                print(f"data.cache {self._folder}: {error}: goes on without", file=sys.stderr)

    @contextmanager
    def lock(self, owner: bytes, number: int) -> Iterator[None]:
        """Held by one thread of one rank of the node; the kernel frees it with the process."""
        path = self._folder / "locks" / str(self._slot(owner, number) % LOCKS)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            yield  # then several may fetch the same
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _slot(self, owner: bytes, number: int) -> int:
        digest = hashlib.blake2b(owner + number.to_bytes(8, "big"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self._slots

    def _path(self, owner: bytes, number: int) -> Path:
        slot = self._slot(owner, number)
        return self._folder / f"{slot % 256:02x}" / f"{slot:x}"

    def _remove_leftovers(self) -> None:
        for path in self._folder.glob(".*.tmp"):
            pid = path.name.split(".")[1]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                path.unlink(missing_ok=True)


class Streamed:
    """A file of tokens that is sliced like an array."""

    def __init__(self, source: Source, dtype: np.dtype[Any], owner: str, cache: Cache) -> None:
        """`owner` names the content, so that another file's blocks are never taken for these."""
        self._source, self._dtype, self._cache = source, dtype, cache
        self._owner = hashlib.sha256(owner.encode()).digest()
        self._size = source.size()
        self._ahead = ThreadPoolExecutor(AHEAD, thread_name_prefix="ahead")

    def __len__(self) -> int:
        return self._size // self._dtype.itemsize

    def __getitem__(self, part: slice) -> npt.NDArray[Any]:
        first, last = self._bytes(part)
        blocks = range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES))
        found = b"".join(self.block(number) for number in blocks)
        start = first - blocks.start * BLOCK_BYTES
        return np.frombuffer(found[start : start + last - first], dtype=self._dtype)

    def prefetch(self, part: slice) -> None:
        """Begin to fetch what will be needed soon; what goes wrong shows when it is needed."""
        first, last = self._bytes(part)
        for number in range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES)):
            self._ahead.submit(self.block, number)

    def block(self, number: int) -> bytes:
        """One block, from the cache or else from the source.

        Raises:
            Stop: the source fails (74), or is not what it was (65).
        """
        found = self._cache.get(self._owner, number)
        if found is not None:
            return found
        with self._cache.lock(self._owner, number):
            found = self._cache.get(self._owner, number)  # another rank may have fetched it
            if found is None:
                first = number * BLOCK_BYTES
                wanted = min(BLOCK_BYTES, self._size - first)
                found = self._source.read(first, wanted)
                if len(found) != wanted:
                    what = f"{len(found)} of {wanted} bytes at {first}"
                    raise Stop(Stop.STORAGE, "data", what, "the file is shorter than it was")
                self._cache.put(self._owner, number, found)
        return found

    def _bytes(self, part: slice) -> tuple[int, int]:
        first, last, _ = part.indices(len(self))
        return first * self._dtype.itemsize, last * self._dtype.itemsize
