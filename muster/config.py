"""YAML into a frozen dataclass, checked key by key, with dotted overrides on top.

Three layers in one order: default of the dataclass < file < override. An unknown key is an error
that names the nearest known one, because a misspelt option that is silently ignored costs a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union

from muster.errors import ConfigError, did_you_mean
from muster.strict_yaml import NOT_YAML, Refused, parse

T = TypeVar("T")
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_show = _short.repr


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ConfigError: missing, not readable, not YAML, not a mapping, or one of YAML's traps: a key
            twice, 02000, 1:00:00.
    """
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(str(path), "no such file", "name an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), str(error), "make it a readable text file") from error
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        if isinstance(error, Refused):
            raise ConfigError(where, str(error.problem), error.fix) from None
        raise ConfigError(
            where, f"not YAML: {getattr(error, 'problem', error)}", "correct the line"
        ) from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(str(path), "the top level is not a mapping", "write 'key: value' lines")
    return value


def override(values: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of nested values with `a.b=value` assignments applied; values are read as YAML."""
    result = _copy(values)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ConfigError(assignment, "not an assignment", "write key=value, e.g. nodes=4")
        place = result
        *parents, last = key.split(".")
        for parent in parents:
            inner = place.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(assignment, f"'{parent}' holds a value", "name a key inside")
            place = inner
        try:
            place[last] = parse(text)
        except Refused as error:
            raise ConfigError(assignment, str(error.problem), error.fix) from None
        except NOT_YAML as error:
            raise ConfigError(assignment, "the value is not YAML", "quote it") from error
    return result


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in values.items()}


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of the dataclass `kind` from nested plain values.

    Args:
        kind: a dataclass; nested dataclasses, Optional, list[...] and dict[str, ...] are followed.
        values: what the YAML file holds.
        where: file name, for the error line.

    Raises:
        ConfigError: unknown or missing key, or a value of the wrong type.
    """
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            hint = did_you_mean(str(key), fields)
            raise ConfigError(
                where, f"unknown key '{key}'.{hint}", f"use one of {', '.join(fields)}"
            )
    arguments = {}
    for name, field in fields.items():
        if name in values:
            arguments[name] = _convert(hints[name], values[name], f"{where}: {name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(where, f"key '{name}' is missing", f"add '{name}: ...'")
    return kind(**arguments)


def _convert(hint: Any, value: Any, where: str) -> Any:  # noqa: PLR0911  (a table of kinds)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Union or origin is getattr(types, "UnionType", Union):
        if value is None and type(None) in inner:
            return None
        return _convert(next(i for i in inner if i is not type(None)), value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise ConfigError(where, f"{_show(value)} is not a mapping", "write 'key: value' lines")
        return build(hint, value, where)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(where, f"{_show(value)} is not a list", "write [a, b]")
        items = [_convert(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(where, f"{_show(value)} is not a mapping", "write 'key: value' lines")
        return _convert_table(inner[1], value, where)
    if hint is Any:
        return value
    return _convert_scalar(hint, value, where)


def _convert_table(hint: Any, value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(key, bool) or not isinstance(key, (str, int)):  # on, null, 2024-01-01
            what = f"key {_show(key)} is {type(key).__name__}, not text"
            raise ConfigError(where, what, "quote the key")
        if str(key) in table:
            raise ConfigError(where, f"key '{key}' stands there twice", "leave one")
        table[str(key)] = _convert(hint, inner, f"{where}.{key}")
    return table


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    is_bool = isinstance(value, bool)
    if hint is float and isinstance(value, (int, float)) and not is_bool:
        with contextlib.suppress(OverflowError):  # an integer of 400 digits
            if not math.isfinite(value):
                raise ConfigError(where, f"{value} is no number", "give a finite one")
            return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, hint) and (hint is bool or not is_bool):
        return value
    raise ConfigError(
        where,
        f"{_show(value)} is {type(value).__name__}, not {hint.__name__}",
        f"give a value of type {hint.__name__}",
    )
