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
from muster.errors import ConfigError, DataError
from muster.strict_yaml import NOT_YAML, Refused, parse

USER_DATA = Path("/var/lib/cloud/instance/user-data.txt")
_PACKED = ("gz", "gzip", "gz+base64", "gzip+base64", "gz+b64", "gzip+b64")
_BASE64 = ("b64", "base64", *_PACKED[2:])


def read_user_data(path: Path = USER_DATA) -> dict[str, Any]:
    """The plain values of the cluster.yaml in a machine's user data.

    Raises:
        DataError: no user data, damaged ones, or none that describe a cluster.
        ConfigError: the description in them has one of YAML's traps (`muster.strict_yaml`).
    """
    where = str(path)
    try:
        text = _plain(path.read_bytes())
        for part in _parts(text):
            values = _description_in(part)
            if values is not None:
                return values
    except Refused as error:
        line = f"line {error.problem_mark.line + 1} of its part" if error.problem_mark else ""
        raise ConfigError(f"{where}: {line}", str(error.problem), error.fix) from None
    except (OSError, EOFError, zlib.error, *NOT_YAML) as error:
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


def _description_in(part: str) -> Optional[dict[str, Any]]:
    config = yaml.safe_load(part)  # the rest is cloud-init's: `permissions: 0644` is right there
    if not isinstance(config, dict):
        return None
    if config.get("muster") is not None:
        return _mapping(parse(part, below="muster"), "muster")
    files = config.get("write_files")
    if files is not None and not isinstance(files, list):
        raise ValueError("write_files is not a list")
    for file in files or []:
        if isinstance(file, dict) and file.get("path") == str(DEFAULT_PATH):
            return _mapping(parse(_content(file)), f"the content of {DEFAULT_PATH}")
    return None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where} is no mapping of keys to values")
    return value


def _content(file: dict[str, Any]) -> str:
    content, encoding = file.get("content") or "", str(file.get("encoding") or "")
    data = content if isinstance(content, bytes) else str(content).encode()
    if encoding not in ("", "text/plain", *_BASE64, *_PACKED):
        raise ValueError(f"{file['path']}: encoding '{encoding}' is unknown")
    if encoding in _BASE64:
        try:
            data = base64.b64decode(b"".join(data.split()), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{file['path']}: {error}") from None
    return _plain(data)
