"""The lines about nodes and partitions, and what the other files say of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from lifecycle.description.instance_types import hardware_of
from lifecycle.description.model import Description, Group, Hardware, Partition
from lifecycle.description.nodes import names_of
from muster.errors import ConfigError
from slurm.conf.host_list import compress
from slurm.conf.setting import comment

MEMORY_PERCENT = 95
"""Of a machine's memory, what jobs get. Firmware and kernel keep 1 to 3 %, daemons need some; and a
node that has less than RealMemory is drained."""

_FOREVER = "UNLIMITED"


def compute_groups(description: Description) -> list[Group]:
    """Groups of compute nodes that have nodes."""
    return [group for group in description.groups if group.role == "compute" and group.nodes]


def need_hardware(group: Group) -> Hardware:
    """What a group's machines have.

    Raises:
        ConfigError: nobody knows.
    """
    hardware = hardware_of(group)
    if hardware is None:
        known = f"'{group.instance_type}' is not known" if group.instance_type else "is not given"
        fix = "write hardware: {sockets: ...}; 'slurmd -C' on a node prints it"
        raise ConfigError(f"groups: {group.name}: hardware", known, fix)
    return hardware


def node_lines(description: Description) -> list[str]:
    """NodeName lines: one for each run of nodes whose names and addresses count up together."""
    lines = comment(
        f"RealMemory is {MEMORY_PERCENT} % of the machine's: a node that has less than it says is "
        "drained. Only compute nodes stand here, so no job ever runs on a login node."
    )
    for group in compute_groups(description):
        hardware = need_hardware(group)
        names = names_of(group)
        for run in _runs([(name, group.addresses.get(name)) for name in names]):
            lines.append(_node_line(run, group, hardware))
    return lines


def _node_line(run: Sequence[tuple[str, Optional[str]]], group: Group, hardware: Hardware) -> str:
    addresses = [address for _, address in run if address is not None]
    words = [f"NodeName={compress(name for name, _ in run)}"]
    if addresses:
        words.append(f"NodeAddr={compress(addresses)}")
    words += [
        f"Sockets={hardware.sockets}",
        f"CoresPerSocket={hardware.cores_per_socket}",
        f"ThreadsPerCore={hardware.threads_per_core}",
        f"RealMemory={hardware.memory_mib * MEMORY_PERCENT // 100}",
    ]
    if hardware.gpus:
        kind = f":{hardware.gpu_type}" if hardware.gpu_type else ""
        words.append(f"Gres=gpu{kind}:{hardware.gpus}")
    words.append(f"Feature={','.join([group.name, *group.features])}")
    return " ".join(words)


def _runs(
    nodes: Sequence[tuple[str, Optional[str]]],
) -> Iterator[list[tuple[str, Optional[str]]]]:
    """Nodes in order, cut where names and addresses stop counting up by one together.

    Without addresses there is nothing to keep in step, and one line does for all.
    """
    if all(address is None for _, address in nodes):
        yield list(nodes)
        return
    run: list[tuple[str, Optional[str]]] = []
    for node in nodes:
        if run and not _follows(run[-1], node):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def _follows(one: tuple[str, Optional[str]], other: tuple[str, Optional[str]]) -> bool:
    if one[1] is None or other[1] is None:
        return one[1] is other[1] is None
    # Two that Slurm's short form joins into one range count up by one.
    pairs = (compress([a, b]) for a, b in zip(one, other) if a is not None and b is not None)
    return all("[" in pair and "-" in pair.partition("[")[2] for pair in pairs)


def partition_lines(description: Description) -> Iterator[tuple[str, list[str]]]:
    """(name, its lines) of every partition."""
    groups = {group.name: group for group in compute_groups(description)}
    tiers = sorted({partition.priority_tier for partition in description.partitions})
    alone = len(description.partitions) == 1  # there is nothing to choose
    for partition in description.partitions:
        mine = [groups[name] for name in partition.groups if name in groups]
        names = list(itertools.chain.from_iterable(names_of(group) for group in mine))
        if not names:
            yield (
                partition.name,
                [f"# PartitionName={partition.name}: its groups have no nodes yet"],
            )
            continue
        spares = sum(group.spares for group in mine)
        told = replace(partition, default=partition.default or alone)
        yield partition.name, _partition(told, names, len(names) - spares, spares, tiers)


def _partition(
    partition: Partition, names: list[str], sized: int, spares: int, tiers: list[int]
) -> list[str]:
    told = []
    if partition.preempt != "off" and partition.priority_tier < tiers[-1]:
        how = {
            "requeue": "requeued, and start again by themselves",
            "cancel": "cancelled",
            "suspend": "stopped, and go on afterwards",
        }[partition.preempt]
        told.append(f"Its jobs yield to any higher tier: they are {how}.")
        if partition.grace_s:
            told.append(f"They are told {partition.grace_s} s before.")
    if partition.max_nodes is None and spares:
        left = f"{spares} node{'s' if spares > 1 else ''}"
        told.append(f"MaxNodes leaves {left} as spare: a lost node is replaced at once.")
    words = [f"PartitionName={partition.name}", f"Nodes={compress(names)}"]
    words += ["Default=YES"] if partition.default else []
    words += [
        f"PriorityTier={partition.priority_tier}",
        f"PreemptMode={partition.preempt.upper()}",
    ]
    words += [f"GraceTime={partition.grace_s}"] if partition.grace_s else []
    words.append(f"MaxTime={_minutes(partition.max_time_s)}")
    if partition.default_time_s is not None:
        words.append(f"DefaultTime={_minutes(partition.default_time_s)}")
    limit = partition.max_nodes if partition.max_nodes is not None else max(sized, 1)
    words.append(f"MaxNodes={limit}")
    words += ["OverSubscribe=EXCLUSIVE"] if partition.exclusive else []
    if partition.allow_groups:
        words.append(f"AllowGroups={','.join(partition.allow_groups)}")
    if partition.allow_accounts:
        words.append(f"AllowAccounts={','.join(partition.allow_accounts)}")
    return [*comment(" ".join(told)), " ".join([*words, "State=UP"])]


def _minutes(seconds: Optional[int]) -> str:
    """Slurm's clock, days-hours:minutes:seconds, so that nothing is rounded."""
    if seconds is None:
        return _FOREVER
    days, rest = divmod(seconds, 86400)
    return f"{days}-{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
