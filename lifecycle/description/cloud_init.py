"""The description that a machine's user data carry, for clouds where cloud-init starts it.

Two forms are read, in plain text, gzip or a MIME archive: a top-level key `muster:` that is the
description itself, and a `write_files` entry that puts cluster.yaml down.
"""

from __future__ import annotations

import base64
import binascii
import email
import gzip
import zlib
from pathlib import Path
from typing import Any, Optional

import yaml

from lifecycle.description.load import DEFAULT_PATH
from muster.errors import DataError

USER_DATA = Path("/var/lib/cloud/instance/user-data.txt")
_PACKED = ("gz", "gzip", "gz+base64", "gzip+base64", "gz+b64", "gzip+b64")
_BASE64 = ("b64", "base64", *_PACKED[2:])


def read_user_data(path: Path = USER_DATA) -> dict[str, Any]:
    """The plain values of the cluster.yaml in a machine's user data.

    Raises:
        DataError: no user data, damaged ones, or none that describe a cluster.
    """
    where = str(path)
    try:
        text = _plain(path.read_bytes())
        for part in _parts(text):
            values = _description_in(yaml.safe_load(part))
            if values is not None:
                return values
    except (OSError, EOFError, ValueError, LookupError, zlib.error, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise DataError(
            where, f"cannot be read: {what}", "look at cloud-init query userdata"
        ) from None
    fix = "add a key 'muster:' with the description"
    raise DataError(where, "describes no cluster", fix)


def _plain(data: bytes) -> str:
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def _parts(text: str) -> list[str]:
    if text.startswith("#cloud-config"):
        return [text]
    message = email.message_from_string(text)
    parts = []
    for part in message.walk():
        payload = part.get_payload(decode=True)
        if part.get_content_type() in ("text/cloud-config", "text/plain") and isinstance(
            payload, bytes
        ):
            parts.append(_plain(payload))
    return parts


def _description_in(config: Any) -> Optional[dict[str, Any]]:
    if not isinstance(config, dict):
        return None
    if isinstance(config.get("muster"), dict):
        return dict(config["muster"])
    for file in config.get("write_files") or []:
        if file.get("path") == str(DEFAULT_PATH):
            values = yaml.safe_load(_content(file))
            return values if isinstance(values, dict) else None
    return None


def _content(file: dict[str, Any]) -> str:
    content, encoding = file.get("content") or "", str(file.get("encoding") or "")
    data = content if isinstance(content, bytes) else str(content).encode()
    if encoding in _BASE64:
        try:
            data = base64.b64decode(data)
        except binascii.Error as error:
            raise ValueError(f"{file['path']}: {error}") from None
    return _plain(data)
