"""Do the values of a description go together? Pure: nothing is looked up on this machine.

`build` has looked at names and types of keys before. Each function here looks at one part, and
raises at the first thing that cannot work.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Optional

from lifecycle.description import model
from lifecycle.description.check_extras import check_extras
from lifecycle.description.check_people import check_secret, check_users
from lifecycle.description.check_slurm import check_slurm
from lifecycle.description.model import Description
from lifecycle.description.nodes import names_of
from lifecycle.description.rules import (
    UINT16,
    UINT32,
    absolute,
    host,
    name,
    one_of,
    port_number,
    unique,
    within,
    word,
)
from muster.errors import ConfigError

_OPTION = re.compile(r"[^\s,]+")
_LUSTRE = re.compile(r"\S+@[A-Za-z0-9]+:/\S*")
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_MOST_MIB = 2**40
_LONGEST_S = 2**31 - 1
_NFS = re.compile(r"\S+:/\S*")


def check(description: Description, where: str) -> None:
    """Raise at the first value that cannot work.

    Raises:
        ConfigError: with the key, the value and what to write instead.
    """
    name(description.name, f"{where}: name")
    one_of(description.platform, model.PLATFORMS, f"{where}: platform")
    _check_groups(description, f"{where}: groups")
    _check_partitions(description, f"{where}: partitions")
    _check_mounts(description, f"{where}: mounts")
    _check_shared_dir(description, f"{where}: shared_dir")
    _check_scratch(description.scratch, f"{where}: scratch")
    check_users(description.users, f"{where}: users")
    _check_accounting(description, f"{where}: accounting")
    check_extras(description, where)
    check_slurm(description, f"{where}: slurm")


def _check_groups(description: Description, where: str) -> None:
    unique((group.name for group in description.groups), where)
    owner: dict[str, str] = {}
    address_of: dict[str, str] = {}
    for group in description.groups:
        here = f"{where}: {group.name}"
        name(group.name, here)
        one_of(group.role, model.ROLES, f"{here}: role")
        names = names_of(group, where.partition(": ")[0])
        for node in names:
            if node.upper() in ("ALL", "DEFAULT"):
                what = f"'{node}' means something else to Slurm"
                raise ConfigError(f"{here}: nodes", what, "give it another name")
            if node in owner:
                what = f"node '{node}' is in '{owner[node]}' already"
                raise ConfigError(f"{here}: nodes", what, "give it one group")
            owner[node] = group.name
        _check_addresses(group, names, address_of, here)
        _check_size(group, len(names), here)
    if not any(group.role == "head" and group.nodes for group in description.groups):
        raise ConfigError(where, "no head node", "add a group with 'role: head' and its node")


def _check_addresses(
    group: model.Group, names: list[str], address_of: dict[str, str], here: str
) -> None:
    for node, text in group.addresses.items():
        at = f"{here}: addresses: {node}"
        one_of(node, names, at)
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise ConfigError(at, f"'{text}' is no IP address", "write 10.0.0.11") from None
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            raise ConfigError(at, f"{text} is no address of one machine", "write the node's own")
        if str(address) in address_of:
            what = f"{text} is that of '{address_of[str(address)]}' already"
            raise ConfigError(at, what, "give each node its own")
        address_of[str(address)] = node


def _check_size(group: model.Group, num_nodes: int, here: str) -> None:
    if group.spares and group.role != "compute":
        raise ConfigError(f"{here}: spares", "only compute nodes have spares", "leave it out")
    if group.spares < 0 or (group.spares >= num_nodes and group.spares):
        what = f"{group.spares} of {num_nodes} nodes leave none for jobs"
        raise ConfigError(f"{here}: spares", what, "give 0 or more, and fewer than there are nodes")
    if group.hardware is not None:
        _check_hardware(group.hardware, f"{here}: hardware")
    if group.instance_type is not None:
        word(group.instance_type, f"{here}: instance_type")
    for feature in group.features:
        name(feature, f"{here}: features")


def _check_hardware(hardware: model.Hardware, here: str) -> None:
    for key in ("sockets", "cores_per_socket", "threads_per_core"):
        within(getattr(hardware, key), 1, UINT16, f"{here}: {key}")
    within(hardware.cpus, 1, UINT16, f"{here}: CPUs of one machine")
    within(hardware.memory_mib, 2, _MOST_MIB, f"{here}: memory_mib")  # Slurm gets 95 %, in integers
    within(hardware.gpus, 0, 64, f"{here}: gpus")
    if hardware.gpu_type is not None and not _GPU_TYPE.fullmatch(hardware.gpu_type):
        what = f"{hardware.gpu_type!r} is no type of --gres=gpu:TYPE:8"
        raise ConfigError(f"{here}: gpu_type", what, "use letters, digits, - _ and .: h100")


def _check_partitions(description: Description, where: str) -> None:
    unique((partition.name for partition in description.partitions), where)
    compute = [group.name for group in description.groups if group.role == "compute"]
    for partition in description.partitions:
        here = f"{where}: {partition.name}"
        name(partition.name, here)
        if partition.name.upper() == "DEFAULT":
            what = f"'{partition.name}' means something else to Slurm"
            raise ConfigError(here, what, "give it another name")
        if not partition.groups:
            raise ConfigError(f"{here}: groups", "is empty", "name the groups of its nodes")
        for group in partition.groups:
            one_of(group, compute, f"{here}: groups")
        unique(partition.groups, f"{here}: groups")
        _check_limits(partition, here)
        _check_preemption(partition, description.partitions, here)
    if sum(partition.default for partition in description.partitions) > 1:
        raise ConfigError(where, "more than one is the default", "write 'default: true' once")
    served = {group for partition in description.partitions for group in partition.groups}
    for group in compute:
        if group not in served:
            what = f"no partition has the nodes of group '{group}'"
            raise ConfigError(where, what, f"add '{group}' to the groups of one")


def _check_limits(partition: model.Partition, here: str) -> None:
    for key, most in (
        ("max_time_s", _LONGEST_S),
        ("default_time_s", partition.max_time_s or _LONGEST_S),
        ("max_nodes", UINT32),
    ):
        value = getattr(partition, key)
        if value is not None:
            within(value, 1, most, f"{here}: {key}")
    within(partition.priority_tier, 1, UINT16, f"{here}: priority_tier")
    within(partition.grace_s, 0, UINT32, f"{here}: grace_s")
    for key in ("allow_groups", "allow_accounts"):
        for text in getattr(partition, key):
            word(text, f"{here}: {key}")


def _check_preemption(
    partition: model.Partition, partitions: list[model.Partition], here: str
) -> None:
    one_of(partition.preempt, model.PREEMPT_WAYS, f"{here}: preempt")
    above = [
        other
        for other in partitions
        if other.priority_tier > partition.priority_tier
        and set(other.groups) & set(partition.groups)
    ]
    if partition.preempt != "off" and not above:
        what = f"'{partition.preempt}', but no partition of a higher tier shares its nodes"
        raise ConfigError(f"{here}: preempt", what, "raise the priority_tier of the other one")


def _check_mounts(description: Description, where: str) -> None:
    unique((str(mount.path) for mount in description.mounts), where)
    for mount in description.mounts:
        here = f"{where}: {mount.path}"
        absolute(mount.path, here)
        one_of(mount.kind, model.MOUNT_KINDS, f"{here}: kind")
        for role in mount.roles:
            one_of(role, model.ROLES, f"{here}: roles")
        within(mount.wait_s, 1, _LONGEST_S, f"{here}: wait_s")
        if mount.min_size_tb is not None and not mount.min_size_tb > 0:
            what = f"{mount.min_size_tb:g} is not above 0"
            raise ConfigError(f"{here}: min_size_tb", what, "leave it out")
        for option in mount.options:
            if not _OPTION.fullmatch(option):
                raise ConfigError(f"{here}: options", f"'{option}' is not one", "write [noatime]")
        if mount.kind == "existing":
            continue
        form, example = (
            (_LUSTRE, "10.0.0.5@tcp:/fsx") if mount.kind == "lustre" else (_NFS, "server:/export")
        )
        if not form.fullmatch(mount.source or ""):
            what = f"'{mount.source or ''}' is nothing that {mount.kind} mounts"
            raise ConfigError(f"{here}: source", what, f"source: {example}")


def _check_shared_dir(description: Description, where: str) -> None:
    if description.shared_dir is None:
        return
    absolute(description.shared_dir, where)
    if mount_of(description, description.shared_dir) is None:
        what = f"{description.shared_dir} is below no mount that all may write"
        raise ConfigError(where, what, "name a folder below a mount")


def mount_of(description: Description, path: Path) -> Optional[model.Mount]:
    """The mount, of all roles and writable, that a path lies below; the innermost."""
    found = [
        mount
        for mount in description.mounts
        if (mount.path == path or mount.path in path.parents)
        and mount.writable
        and set(mount.roles) == set(model.ROLES)
    ]
    return max(found, key=lambda mount: len(mount.path.parts), default=None)


def _check_scratch(scratch: model.Scratch, where: str) -> None:
    for path in (scratch.path, scratch.folder, *scratch.stores):
        absolute(path, where)
    for kind in scratch.kinds:
        one_of(kind, model.SCRATCH_KINDS, f"{where}: kinds")
    if not scratch.min_free_gib > 0:
        raise ConfigError(f"{where}: min_free_gib", "must be above 0", "min_free_gib: 20")


def _check_accounting(description: Description, where: str) -> None:
    accounting = description.accounting
    one_of(accounting.database, model.DATABASES, f"{where}: database")
    if accounting.node is not None:
        heads = [n for group in description.groups if group.role == "head" for n in names_of(group)]
        one_of(accounting.node, heads, f"{where}: node")
    if accounting.password is not None:
        check_secret(accounting.password, f"{where}: password")
    if accounting.database == "external":
        for key in ("host", "password"):
            if getattr(accounting, key) is None:
                raise ConfigError(where, f"an external database needs '{key}'", f"add '{key}: ...'")
    for key in ("user", "name"):
        if not re.fullmatch(r"[A-Za-z0-9_]{1,32}", getattr(accounting, key)):
            raise ConfigError(f"{where}: {key}", "is no name", "use letters, digits and _")
    if accounting.host is not None:
        host(accounting.host, f"{where}: host")
    port_number(accounting.port, f"{where}: port")
    within(accounting.purge_after_days, 1, UINT16, f"{where}: purge_after_days")
