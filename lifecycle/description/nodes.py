"""The nodes of a description written out, one by one, with what is known of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from lifecycle.description.host_list import expand
from lifecycle.description.instance_types import hardware_of
from lifecycle.description.model import Description, Group, Hardware


@dataclass(frozen=True)
class Node:
    """One machine."""

    name: str
    role: str  # head, login or compute
    group: str
    address: Optional[str]  # None: the name is resolved
    hardware: Optional[Hardware]  # None: only the machine itself knows


def names_of(group: Group, where: str = "cluster.yaml") -> list[str]:
    """Names of a group's nodes, in order."""
    return [
        name
        for text in group.nodes
        for name in expand(text, f"{where}: groups: {group.name}: nodes")
    ]


def all_nodes(description: Description) -> list[Node]:
    """All nodes, in the order of the file: the first head node is the primary controller."""
    return [
        Node(name, group.role, group.name, group.addresses.get(name), hardware)
        for group in description.groups
        for hardware in [hardware_of(group)]
        for name in names_of(group)
    ]


def of_role(description: Description, role: str) -> list[Node]:
    """The nodes of one role."""
    return [node for node in all_nodes(description) if node.role == role]


def accounting_node(description: Description) -> Optional[str]:
    """Name of the node where slurmdbd runs; None: no accounting."""
    if description.accounting.database == "off":
        return None
    return description.accounting.node or of_role(description, "head")[0].name
