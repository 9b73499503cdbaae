"""Objects in S3, or in a server that speaks its protocol, through boto3.

Credentials are found by the library's own chain (environment, ~/.aws, the machine's role); they are
never seen here, and of an error only its code is told.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from resume.archive import ArchiveError

_READ_BYTES = 4 << 20
_DELETED_AT_ONCE = 1000  # the protocol's limit


class S3Store:
    """Objects below s3://bucket/prefix; an `ObjectStore`."""

    def __init__(self, bucket: str, prefix: str, endpoint: Optional[str]) -> None:
        """No request is made yet."""
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        config = Config(
            connect_timeout=10,
            read_timeout=60,
            retries={"max_attempts": 5, "mode": "standard"},
            # Trailing checksums are not understood by every server; all is read back anyway.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if endpoint else None,
        )
        with _told("open"):
            self._client: Any = boto3.session.Session().client(
                "s3", endpoint_url=endpoint, config=config
            )

    def put(self, name: str, path: Path) -> None:
        """Store a file, large ones in parts."""
        with _told(f"write {name}"):
            self._client.upload_file(str(path), self._bucket, self._prefix + name)

    def put_bytes(self, name: str, content: bytes) -> None:
        """Store a small object."""
        with _told(f"write {name}"):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)

    def get(self, name: str, path: Path) -> None:
        """Write an object into a file."""
        with _told(f"read {name}"):
            self._client.download_file(self._bucket, self._prefix + name, str(path))

    def get_bytes(self, name: str) -> bytes:
        """A small object; empty when there is none."""
        return b"".join(self._blocks(name))

    def digest(self, name: str) -> str:
        """SHA-256 of what the store holds; empty when there is nothing."""
        digest, empty = hashlib.sha256(), True
        for block in self._blocks(name):
            digest.update(block)
            empty = False
        return "" if empty and not self._exists(name) else digest.hexdigest()

    def _blocks(self, name: str) -> Iterator[bytes]:
        with _told(f"read {name}"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return
                raise
            with contextlib.closing(answer["Body"]) as body:
                while block := body.read(_READ_BYTES):
                    yield block

    def _exists(self, name: str) -> bool:
        return self._prefix + name in self._keys(name)

    def _keys(self, prefix: str) -> list[str]:
        with _told(f"list {prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def names(self, prefix: str) -> list[str]:
        """Names of all objects below a prefix."""
        return [key[len(self._prefix) :] for key in self._keys(prefix)]

    def delete(self, names: list[str]) -> None:
        """Delete objects."""
        with _told("delete"):
            for first in range(0, len(names), _DELETED_AT_ONCE):
                keys = [{"Key": self._prefix + n} for n in names[first : first + _DELETED_AT_ONCE]]
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
                )
                for problem in answer.get("Errors", ()):
                    raise ArchiveError(f"delete {problem['Key']}: {problem['Code']}")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What the library raises, as one line without anything that it was given."""
    try:
        yield
    except ClientError as error:
        raise ArchiveError(f"{what}: {_code(error)}") from None
    except (BotoCoreError, Boto3Error) as error:
        inner = error.__context__  # a failed upload is only the wrapping
        said = _code(inner) if isinstance(inner, ClientError) else type(error).__name__
        raise ArchiveError(f"{what}: {said}") from None
    except ValueError as error:  # an endpoint that is no URL
        raise ArchiveError(f"{what}: {error}") from None


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))
