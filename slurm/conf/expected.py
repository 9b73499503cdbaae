"""What Slurm has to say if it has understood a configuration as it was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lifecycle.description.instance_types import hardware_of
from lifecycle.description.model import Description
from lifecycle.description.nodes import names_of
from slurm.conf.machines import compute_groups


def partition_sizes(description: Description) -> dict[str, int]:
    """{partition: number of its nodes}; those without nodes are not in slurm.conf."""
    sizes = {group.name: len(names_of(group)) for group in compute_groups(description)}
    counts = {
        partition.name: sum(sizes.get(name, 0) for name in partition.groups)
        for partition in description.partitions
    }
    return {name: count for name, count in counts.items() if count}


def gpus_of_one(description: Description) -> dict[str, int]:
    """{the first node of a group: its GPUs}."""
    found = {}
    for group in compute_groups(description):
        hardware = hardware_of(group)
        found[names_of(group)[0]] = hardware.gpus if hardware else 0
    return found


def differences(
    description: Description, partitions: Mapping[str, int], gpus: Mapping[str, int]
) -> Iterator[str]:
    """What Slurm's daemons understood otherwise; nothing of what they gave no answer to."""
    for name, number in partition_sizes(description).items():
        if partitions and partitions.get(name, 0) != number:
            yield f"partition {name}: {partitions.get(name, 0)} of {number} nodes"
    for node, number in gpus_of_one(description).items():
        if gpus.get(node, number) != number:
            yield f"gres.conf: node {node} has {gpus[node]} of {number} GPUs"
