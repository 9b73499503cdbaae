"""Options from files and words: typed, complete, each value in one place.

config.yaml first, then the files that its values choose (sizes/<model.size>.yaml), then
`section.key=value` words of the command line. A key that stands in two files is an error, so there
is no silent precedence to remember. The dataclasses in config.py are the list of all options.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import yaml

from errors import Stop

Keys = dict[tuple[str, str], Any]
T = TypeVar("T")

# What PyYAML lets through beside its own errors: 2024-13-45, !!int '', [[[[[[...
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)


class _Loader(yaml.SafeLoader):
    """YAML in which the last of two equal keys does not win, and 0100 is not 64."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"'{name}' stands there twice")
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9_]{,17})", node.value):
            raise ValueError(f"{node.value[:20]} is no plain number")
        return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read(kind: type[T], folder: Path, words: Sequence[str], chosen: Sequence[str]) -> T:
    """Merge the files of a recipe's folder and `section.key=value` words into a dataclass.

    Args:
        kind: a dataclass whose fields are the sections, dataclasses too.
        folder: the recipe's folder.
        words: of the command line.
        chosen: files whose names depend on values, such as "sizes/{model.size}.yaml".

    Raises:
        Stop: unknown or missing key, wrong type, no such file (exit code 78).
    """
    given = dict(_split(word) for word in words)
    values, origin = _read(folder / "config.yaml"), {}
    origin = dict.fromkeys(values, "config.yaml")
    for pattern in chosen:
        name = _chosen_name(folder, pattern, {**values, **given})
        for key, value in _read(folder / name).items():
            if key in origin:
                what = f"it stands in {name} too"
                fix = "keep one of the two; to try another value, give it on the command line"
                raise bad(f"{origin[key]}: {'.'.join(key)}", what, fix)
            values[key], origin[key] = value, name
    return _build(kind, {**values, **given})


def flat(config: Any) -> dict[str, Any]:
    """All options as {"section.key": value}."""
    return {
        f"{section.name}.{field.name}": getattr(getattr(config, section.name), field.name)
        for section in fields(config)
        for field in fields(getattr(config, section.name))
    }


def refuse_below_zero(config: Any, may_be_zero: Sequence[str]) -> None:
    """No number may be negative; 0 only where `section.key` or `section` is in `may_be_zero`."""
    for name, value in flat(config).items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        zero_is_fine = name in may_be_zero or name.partition(".")[0] in may_be_zero
        if number and (value < 0 or (value == 0 and not zero_is_fine)):
            raise bad(name, f"{value} is too small", "make it positive")


def one_of(where: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not in the list."""
    if value not in allowed:
        raise bad(where, f"'{value}' is not known", f"use one of {', '.join(allowed)}")


def bad(where: str, what: str, fix: str) -> Stop:
    """A configuration error (exit code 78)."""
    return Stop(Stop.CONFIG, where, what, fix)


def _split(word: str) -> tuple[tuple[str, str], Any]:
    name, equals, text = word.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot and key):
        raise bad(f"argument '{word}'", "not of the form section.key=value", "e.g. train.steps=20")
    try:
        return (section, key), _Loader(text).get_single_data()
    except yaml.YAMLError:
        raise bad(f"argument '{word}'", "the value is not YAML", "quote it") from None
    except _NOT_YAML as error:
        raise bad(f"argument '{word}'", str(error), "correct the value, or quote it") from None


def _read(path: Path) -> Keys:
    try:
        tree = _Loader(path.read_text(encoding="utf-8")).get_single_data() or {}
    except (OSError, *_NOT_YAML) as error:
        reason = " ".join(str(error).split())
        raise bad(path.name, f"cannot be read: {reason}", "repair the file") from None
    if not isinstance(tree, dict) or not all(isinstance(v or {}, dict) for v in tree.values()):
        raise bad(path.name, "expected sections with keys", "see the comments in config.yaml")
    return {(str(s), str(k)): v for s, keys in tree.items() for k, v in (keys or {}).items()}


def _chosen_name(folder: Path, pattern: str, values: Keys) -> str:
    """The file that a pattern means; an error names the files that there are."""
    name = pattern
    for key in re.findall(r"\{(.+?)\}", pattern):
        section, _, option = key.partition(".")
        if (section, option) not in values:
            raise bad("config.yaml", f"{key} is missing", f"name a file of {pattern}")
        head, _, tail = name.partition(f"{{{key}}}")
        name = f"{head}{values[section, option]}{tail}"
    if not (folder / name).is_file():
        there = sorted(p.relative_to(folder).as_posix() for p in folder.glob(f"{head}*{tail}"))
        known = ", ".join(path[len(head) : len(path) - len(tail)] for path in there)
        raise bad(key, f"there is no {name}", f"use one of {known}" if known else "correct it")
    return name


def _build(kind: type[T], values: Keys) -> T:
    known = {
        (section.name, field.name): field.type
        for section in fields(kind)  # type: ignore[arg-type]
        if isinstance(section.type, type) and is_dataclass(section.type)
        for field in fields(section.type)
    }
    for section, key in values:
        if (section, key) not in known:
            names = [f"{s}.{k}" for s, k in known]
            near = difflib.get_close_matches(f"{section}.{key}", names, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else "config.yaml lists the options"
            raise bad(f"{section}.{key}", "unknown option", hint)
    sections: dict[str, dict[str, Any]] = {section: {} for section, _ in known}
    for (section, key), wanted in known.items():
        if (section, key) not in values:
            fix = "add it to config.yaml or the size file"
            raise bad(f"{section}.{key}", "missing", fix)
        sections[section][key] = _typed(f"{section}.{key}", values[section, key], wanted)
    kinds: dict[str, Any] = {section.name: section.type for section in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: kinds[name](**arguments) for name, arguments in sections.items()})


def _typed(where: str, value: Any, wanted: Any) -> Any:
    if wanted is float and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 1e-5 (no dot) as a string
        except (TypeError, ValueError, OverflowError):
            pass
        else:
            if math.isfinite(number):
                return number
            raise bad(where, f"{number} is no number", "correct the value")
    choices = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    allowed = tuple(get_origin(choice) or choice for choice in choices)
    if type(value) in allowed:
        return value
    names = " or ".join(t.__name__ for t in allowed)
    raise bad(where, f"{value!r} is not of type {names}", "correct the value")
