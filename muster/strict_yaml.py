"""YAML without its traps: what would be taken silently for something else is refused.

PyYAML takes the last of two equal keys, reads 02000 as 1024 and 1:00:00 as 3600, and hands on a
value that contains itself. The nodes are looked at before anything is made of them, so a refusal
knows its line.
"""

from __future__ import annotations

import re
from typing import Any, Optional

import yaml

MAX_VALUES = 1_000_000
"""With every alias written out: some lines of aliases of aliases are more than a memory holds."""
_MAX_INTEGER = 2**63
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

# What PyYAML lets through: 2024-13-45, !!bool maybe, !!int '', !!timestamp x, [[[[[[...
NOT_YAML = (
    *(yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError),
    *(TypeError, OverflowError),
)


class Refused(yaml.MarkedYAMLError):
    """It is YAML, and not what its writer means; `problem` and `fix` say why."""

    def __init__(self, node: yaml.Node, problem: str, fix: str) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)
        self.fix = fix


def parse(text: str, below: Optional[str] = None) -> Any:
    """The value of one YAML document.

    Args:
        text: the document.
        below: a key of its top level: only its value is looked at and returned, or None. The rest
            is somebody else's.

    Raises:
        Refused: a key twice, a number that YAML 1.1 reads in another base, or above 64 bits, text
            that no file can hold, a value that contains itself.
        NOT_YAML: one of these; it cannot be read at all.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if below is not None:
            node = _below(node, below)
        if node is None:
            return None
        _check(node, loader, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _below(node: Optional[yaml.Node], key: str) -> Optional[yaml.Node]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    found = [(name, value) for name, value in pairs if name.value == key]
    if len(found) > 1:
        raise Refused(found[1][0], f"'{key}' stands there twice", "leave one")
    return found[0][1] if found else None


def _check(node: yaml.Node, loader: yaml.SafeLoader, sizes: dict[int, int]) -> int:
    """Number of values below a node, itself included; 0 in `sizes`: it is being counted."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise Refused(node, "a value contains itself", "write it out instead of the alias")
        return sizes[id(node)]
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, loader)
        return 1
    sizes[id(node)] = 0
    size = 1
    below = node.value
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        below = [part for pair in node.value for part in pair]
    for part in below:
        size += _check(part, loader, sizes)
        if size > MAX_VALUES:
            what = f"more than {MAX_VALUES} values with aliases written out"
            raise Refused(node, what, "use fewer aliases")
    sizes[id(node)] = size
    return size


def _check_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise Refused(key, f"key '{key.value}' stands there twice", "leave one")
            seen.add((key.tag, key.value))


def _check_scalar(node: yaml.ScalarNode, loader: yaml.SafeLoader) -> None:
    if _SURROGATE.search(node.value):
        try:  # JSON writes a character beyond 65535 as two
            node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise Refused(node, "half a character (\\ud800 to \\udfff)", "correct it") from None
    if _CONTROL.search(node.value):
        raise Refused(node, f"control characters in {node.value[:40]!r}", "leave them out")
    if node.tag not in _NUMBER_TAGS:
        return
    if ":" in node.value:
        raise Refused(node, f"{node.value} is read to base 60", "write it in one unit, or quote it")
    if node.tag != _NUMBER_TAGS[0]:
        return
    if _OCTAL.fullmatch(node.value):
        what = f"{node.value} is read as octal"
        raise Refused(node, what, "write it without leading zeros, or quote it")
    if not -_MAX_INTEGER <= loader.construct_yaml_int(node) < _MAX_INTEGER:
        shown = node.value if len(node.value) <= 20 else f"{node.value[:20]}..."
        what = f"{shown} is more than 64 bits"
        raise Refused(node, what, "write a smaller number, or quote it")
