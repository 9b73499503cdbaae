"""The values of a platform's JSON file: each of the kind that is read, or one line that says where.

`or {}` and `str()` would take a list for nothing and a word for its letters. What is of another
kind is a ConfigError; `where` is the place in the file, for its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from muster.errors import ConfigError, DataError, did_you_mean


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        DataError: missing, not JSON, a key twice, or half a character.
        ConfigError: it holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        json.dumps(value, ensure_ascii=False).encode()  # half a character, such as \ud800, is none
    except FileNotFoundError:
        raise DataError(str(path), "no such file", "wait for the platform, or name it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(str(path), f"is no JSON: {error}", "correct or fetch it again") from None
    return mapping(value, str(path))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"key '{key}' stands there twice")
        values[key] = value
    return values


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ConfigError(where, f"{type(value).__name__} where an object belongs", "write {...}")
    return value


def list_of(value: Any, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ConfigError(where, f"{type(value).__name__} where a list belongs", "write [...]")
    return value


def mapping_or_none(value: Any, where: str) -> dict[str, Any]:
    """Nothing in an object's place is an empty one."""
    return {} if value is None else mapping(value, where)


def list_or_none(value: Any, where: str) -> list[Any]:
    """Nothing in a list's place is an empty one."""
    return [] if value is None else list_of(value, where)


def texts(value: Any, where: str) -> list[str]:
    """A list of texts, or nothing."""
    return [text(item, f"{where}[{i}]") for i, item in enumerate(list_or_none(value, where))]


def text_or_none(value: Any, where: str) -> Optional[str]:
    """A text, or nothing: null and an empty one."""
    return None if value is None or value == "" else text(value, where)


def text(value: Any, where: str) -> str:
    """A text that is not empty."""
    if value is None or value == "":
        raise ConfigError(where, "is missing or empty", "add it")
    if not isinstance(value, str):
        raise ConfigError(where, f"{type(value).__name__} where text belongs", 'write "..."')
    return value


def known_one(value: Any, known: Iterable[str], where: str) -> None:
    """Raise unless it is one of the known values."""
    known = list(known)
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ConfigError(where, f"'{value}' is unknown.{hint}", f"use one of {', '.join(known)}")
