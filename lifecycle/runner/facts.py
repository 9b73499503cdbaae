"""What steps know: the description and the node, as variables of bash.

Made from the dataclasses themselves, so that a new key of cluster.yaml is there at once:
`slurm.lost_after_s` is $C_SLURM_LOST_AFTER_S, a list is an array, and a list of mappings is one
array per key (C_MOUNTS_PATH, C_MOUNTS_KIND ...). Null and false are empty, true is `yes`.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Union

from lifecycle.description.check import mount_of
from lifecycle.description.model import Description
from lifecycle.description.nodes import Node, accounting_node, all_nodes, of_role

Value = Union[str, list[str]]


def values(description: Description, node: Node) -> dict[str, object]:
    """Dotted keys and their values, for the `when:` of steps; those of the node are `node.*`."""
    flat = dict(_dotted(dataclasses.asdict(description), ""))
    heads = of_role(description, "head")
    flat["node.role"], flat["node.group"] = node.role, node.group
    flat["node.gpus"] = node.hardware.gpus if node.hardware else 0
    flat["node.primary"] = bool(heads) and node.name == heads[0].name
    flat["node.home_shared"] = mount_of(description, description.users.home) is not None
    flat["node.accounting"] = node.name == accounting_node(description)
    return flat


def _dotted(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for key, inner in value.items():
        yield f"{prefix}{key}", inner
        if isinstance(inner, dict):
            yield from _dotted(inner, f"{prefix}{key}.")


def variables(description: Description, node: Node) -> dict[str, Value]:
    """All variables of a step; no secret is among them, only where to read it."""
    found: dict[str, Value] = {}
    for field in dataclasses.fields(description):
        _add(found, f"C_{field.name.upper()}", getattr(description, field.name))
    for name in ("C_ACCOUNTING_PASSWORD", "C_SLURM_MUNGE_KEY"):  # null: both ways are empty
        found.pop(name, None)
        found.setdefault(f"{name}_FILE", "")
        found.setdefault(f"{name}_COMMAND", [])
    nodes = all_nodes(description)
    hardware = node.hardware
    found.update(
        N_NAME=node.name,
        N_ROLE=node.role,
        N_GROUP=node.group,
        N_ADDRESS=node.address or "",
        N_GPUS=str(hardware.gpus) if hardware else "",
        N_PRIMARY="yes" if values(description, node)["node.primary"] else "",
        ACCOUNTING_NODE=accounting_node(description) or "",
        NODES_NAME=[one.name for one in nodes],
        NODES_ROLE=[one.role for one in nodes],
        NODES_ADDRESS=[one.address or "" for one in nodes],
        NODES_GROUP=[one.group for one in nodes],
        NODES_GPUS=[str(one.hardware.gpus) if one.hardware else "" for one in nodes],
    )
    return found


def _add(found: dict[str, Value], name: str, value: Any) -> None:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _add(found, f"{name}_{field.name.upper()}", getattr(value, field.name))
    elif isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        for field in dataclasses.fields(value[0]):
            items = [getattr(item, field.name) for item in value]
            found[f"{name}_{field.name.upper()}"] = [_text(item) for item in items]
    elif isinstance(value, list):
        found[name] = [_text(item) for item in value]
    elif isinstance(value, dict):
        found[f"{name}_KEYS"] = [str(key) for key in value]
        found[f"{name}_VALUES"] = [_text(item) for item in value.values()]
    else:
        found[name] = _text(value)


def _text(value: Any) -> str:
    if value is None or value is False:
        return ""
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return "yes" if value is True else str(value)


def as_bash(found: Mapping[str, Value]) -> str:
    """Lines of assignments that bash reads back exactly."""
    lines = []
    for name, value in found.items():
        if isinstance(value, list):
            lines.append(f"{name}=({' '.join(shlex.quote(item) for item in value)})")
        else:
            lines.append(f"{name}={shlex.quote(value)}")
    return "\n".join([*lines, ""])
