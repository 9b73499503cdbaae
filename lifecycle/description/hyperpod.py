"""What HyperPod says about its cluster, as plain values for `load_description`.

resource_config.json is written by the platform onto every node (path in
$SAGEMAKER_RESOURCE_CONFIG_PATH) and lists machines; provisioning_parameters.json is written by a
person and says what each group is for. Clusters that are configured through the API have no such
file: there each group carries a `SlurmConfig`, and its file systems. Unknown keys are the
platform's future and do not matter, unless they are nearly a known one of the person's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from lifecycle.description.json_values import (
    known_one,
    list_of,
    list_or_none,
    mapping,
    mapping_or_none,
    read_object,
    text,
    text_or_none,
    texts,
)
from lifecycle.description.rules import unique
from muster.errors import ConfigError, did_you_mean

RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
_ROLE_OF = {"Controller": "head", "Login": "login", "Compute": "compute"}
STRATEGIES = ("Overwrite", "Managed", "Merge")

_KEYS = (
    *("version", "workload_manager", "controller_group", "login_group", "worker_groups"),
    *("fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name", "slurm_configurations"),
)
_WORKER_KEYS = ("instance_group_name", "partition_name")
_DATABASE_KEYS = (
    *("slurm_database_secret_arn", "slurm_database_endpoint", "slurm_shared_directory"),
    *("slurm_database_user", "slurm_sns_arn"),
)


@dataclass(frozen=True)
class Instance:
    """One machine. Slurm calls it `name`, after the address in the customer's network."""

    name: str
    instance_id: str
    address: str


@dataclass(frozen=True)
class InstanceGroup:
    """Machines that were ordered together; none yet, if the platform says null."""

    name: str
    instance_type: Optional[str]
    instances: list[Instance]
    role: Optional[str] = None  # head, login or compute; None: the other file says it
    partitions: list[str] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)  # as cluster.yaml has them


@dataclass(frozen=True)
class ResourceConfig:
    """resource_config.json."""

    cluster: str
    groups: list[InstanceGroup]
    controllers: list[str]  # addresses: primary, then secondary ones
    strategy: Optional[str] = None  # Overwrite, Managed or Merge; None: an older cluster


@dataclass(frozen=True)
class Provisioning:
    """provisioning_parameters.json: group names by what they are for."""

    controller: str
    login: Optional[str]
    workers: dict[str, Optional[str]]  # group: partition
    mounts: list[dict[str, Any]]
    database: Optional[dict[str, Any]] = None  # `accounting` of cluster.yaml
    shared_dir: Optional[str] = None


def read_resource_config(path: Path) -> ResourceConfig:
    """Read and check resource_config.json.

    Raises:
        DataError: missing or not JSON.
        ConfigError: a key that is needed is missing or has another form than ever seen.
    """
    values = read_object(path)
    where = str(path)
    cluster = mapping(values.get("ClusterConfig"), f"{where}: ClusterConfig")
    slurm = mapping_or_none(values.get("SlurmConfig"), f"{where}: SlurmConfig")
    orchestrator = mapping_or_none(values.get("Orchestrator"), f"{where}: Orchestrator")
    under = mapping_or_none(orchestrator.get("Slurm"), f"{where}: Orchestrator: Slurm")
    strategy = next(
        (
            place.get("SlurmConfigStrategy")
            for place in (slurm, cluster, values, under)
            if place.get("SlurmConfigStrategy")
        ),
        None,
    )
    if strategy is not None:
        known_one(strategy, STRATEGIES, f"{where}: SlurmConfigStrategy")
    primary = text_or_none(slurm.get("PrimaryControllerIp"), f"{where}: PrimaryControllerIp")
    secondary = texts(slurm.get("SecondaryControllerIps"), f"{where}: SecondaryControllerIps")
    groups = [
        _group(item, f"{where}: InstanceGroups[{i}]")
        for i, item in enumerate(list_of(values.get("InstanceGroups"), f"{where}: InstanceGroups"))
    ]
    unique((group.name for group in groups), f"{where}: InstanceGroups")
    return ResourceConfig(
        cluster=text(cluster.get("ClusterName"), f"{where}: ClusterConfig: ClusterName"),
        groups=groups,
        controllers=[*([primary] if primary else []), *secondary],
        strategy=strategy,
    )


def read_provisioning(path: Path) -> Provisioning:
    """Read and check provisioning_parameters.json.

    Raises:
        DataError: missing or not JSON.
        ConfigError: a key is missing, misspelt, or has a wrong value.
    """
    values, where = read_object(path), str(path)
    _refuse_misspelt(values, _KEYS, where)
    manager = values.get("workload_manager", "slurm")
    known_one(manager, ["slurm"], f"{where}: workload_manager")
    workers: list[tuple[str, Optional[str]]] = []
    for i, item in enumerate(list_or_none(values.get("worker_groups"), f"{where}: worker_groups")):
        here = f"{where}: worker_groups[{i}]"
        worker = mapping(item, here)
        _refuse_misspelt(worker, _WORKER_KEYS, here)
        name = text(worker.get("instance_group_name"), f"{here}.instance_group_name")
        partition = text_or_none(worker.get("partition_name"), f"{here}.partition_name")
        workers.append((name, partition))
    controller = text(values.get("controller_group"), f"{where}: controller_group")
    login = text_or_none(values.get("login_group"), f"{where}: login_group")
    named = [controller, *([login] if login else []), *(name for name, _ in workers)]
    unique(named, f"{where}: controller_group, login_group, worker_groups")
    here = f"{where}: slurm_configurations"
    database = mapping_or_none(values.get("slurm_configurations"), here)
    _refuse_misspelt(database, _DATABASE_KEYS, here)
    shared = database.get("slurm_shared_directory")
    return Provisioning(
        controller=controller,
        login=login,
        workers=dict(workers),
        mounts=_mounts_of_parameters(values, where),
        database=_database(database, here) if database else None,
        shared_dir=text_or_none(shared, f"{here}: slurm_shared_directory"),
    )


def _refuse_misspelt(values: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in values:
        hint = did_you_mean(key, known) if key not in known else ""
        if hint:
            raise ConfigError(where, f"unknown key '{key}'.{hint}", "correct it")


def platform_values(
    resources: ResourceConfig, provisioning: Optional[Provisioning] = None
) -> dict[str, Any]:
    """Both files as the plain values of a cluster.yaml.

    Raises:
        ConfigError: a group without a role, or a role without a group.
    """
    names = [group.name for group in resources.groups]
    if provisioning is not None:
        wanted = [provisioning.controller, *provisioning.workers]
        for name in [*wanted, *([provisioning.login] if provisioning.login else [])]:
            known_one(name, names, "provisioning_parameters.json: a group of resource_config.json")
    roles = {group.name: _role(group, provisioning, names) for group in resources.groups}
    partitions: dict[str, list[str]] = {}
    for group in resources.groups:
        if roles[group.name] == "compute":
            own = [(provisioning.workers.get(group.name) if provisioning else None) or ""]
            for partition in group.partitions or [name for name in own if name] or ["dev"]:
                partitions.setdefault(partition, []).append(group.name)
    mounts = {mount["path"]: mount for group in resources.groups for mount in group.mounts}
    mounts.update({mount["path"]: mount for mount in (provisioning.mounts if provisioning else [])})
    values: dict[str, Any] = {
        "name": resources.cluster,
        "platform": "hyperpod",
        "groups": [
            _group_values(group, roles[group.name], resources) for group in resources.groups
        ],
        "partitions": [
            {"name": name, "groups": groups, "default": i == 0}
            for i, (name, groups) in enumerate(partitions.items())
        ],
        "mounts": list(mounts.values()),
    }
    if provisioning is not None and provisioning.database is not None:
        values["accounting"] = provisioning.database
    if provisioning is not None and provisioning.shared_dir is not None:
        values["slurm"] = {"state_dir": f"{provisioning.shared_dir.rstrip('/')}/state"}
    return values


def _group_values(group: InstanceGroup, role: str, resources: ResourceConfig) -> dict[str, Any]:
    order = resources.controllers if role == "head" else []
    instances = sorted(
        group.instances,
        key=lambda one: order.index(one.address) if one.address in order else len(order),
    )
    values: dict[str, Any] = {
        "name": group.name,
        "role": role,
        "nodes": [one.name for one in instances],
        "addresses": {one.name: one.address for one in instances},
    }
    if group.instance_type:
        values["instance_type"] = group.instance_type
    return values


def _role(group: InstanceGroup, provisioning: Optional[Provisioning], names: list[str]) -> str:
    if group.role is not None:
        return group.role
    if provisioning is not None:
        if group.name == provisioning.controller:
            return "head"
        if group.name == provisioning.login:
            return "login"
        if group.name in provisioning.workers:
            return "compute"
    where = f"resource_config.json: group '{group.name}'"
    what = "has no SlurmConfig, and provisioning_parameters.json does not name it"
    raise ConfigError(where, what, f"add it to worker_groups there; groups are {', '.join(names)}")


def _group(value: Any, where: str) -> InstanceGroup:
    group = mapping(value, where)
    slurm = mapping_or_none(group.get("SlurmConfig"), f"{where}: SlurmConfig")
    node_type = slurm.get("NodeType")
    if node_type is not None:
        known_one(node_type, _ROLE_OF, f"{where}: SlurmConfig: NodeType")
    partitions = texts(slurm.get("PartitionNames"), f"{where}: SlurmConfig: PartitionNames")
    unique(partitions, f"{where}: SlurmConfig: PartitionNames")
    instances = list_or_none(group.get("Instances"), f"{where}: Instances")
    return InstanceGroup(
        name=text(group.get("Name") or group.get("InstanceGroupName"), f"{where}: Name"),
        instance_type=text_or_none(group.get("InstanceType"), f"{where}: InstanceType"),
        instances=[_instance(item, f"{where}: Instances[{i}]") for i, item in enumerate(instances)],
        role=_ROLE_OF[node_type] if node_type is not None else None,
        partitions=partitions,
        mounts=_mounts_of_group(group, where),
    )


def _instance(value: Any, where: str) -> Instance:
    instance = mapping(value, where)
    address = text(
        instance.get("CustomerIpAddress") or instance.get("AgentIpAddress"),
        f"{where}: CustomerIpAddress",
    )
    return Instance(
        name=f"ip-{address.replace('.', '-').replace(':', '-')}",
        instance_id=text_or_none(instance.get("InstanceId"), f"{where}: InstanceId") or "",
        address=address,
    )


def _mounts_of_group(group: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    mounts = []
    storage = group.get("InstanceStorageConfigs")
    for i, item in enumerate(list_or_none(storage, f"{where}: InstanceStorageConfigs")):
        here = f"{where}: InstanceStorageConfigs[{i}]"
        for key, kind, default in (
            ("FsxLustreConfig", "lustre", "/fsx"),
            ("FsxOpenZfsConfig", "openzfs", "/home"),
        ):
            at = f"{here}: {key}"
            config = mapping_or_none(mapping(item, here).get(key), at)
            if config:
                dns = text(config.get("DnsName"), f"{at}: DnsName")
                path = text_or_none(config.get("MountPath"), f"{at}: MountPath") or default
                name = text_or_none(config.get("MountName"), f"{at}: MountName")
                mounts.append(_mount(kind, path, dns, name))
    return mounts


def _mounts_of_parameters(values: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    mounts = []
    lustre = text_or_none(values.get("fsx_dns_name"), f"{where}: fsx_dns_name")
    if lustre:
        name = text(values.get("fsx_mountname"), f"{where}: fsx_mountname")
        mounts.append(_mount("lustre", "/fsx", lustre, name))
    zfs = text_or_none(values.get("fsx_openzfs_dns_name"), f"{where}: fsx_openzfs_dns_name")
    if zfs:
        mounts.append(_mount("openzfs", "/home", zfs, None))
    return mounts


def _mount(kind: str, path: str, dns: str, name: Optional[str]) -> dict[str, Any]:
    # The service mounts Lustre by TCP at the name it gives out, and exports one tree of OpenZFS.
    source = f"{dns}@tcp:/{name or 'fsx'}" if kind == "lustre" else f"{dns}:/fsx"
    return {"path": path, "kind": kind, "source": source}


def _database(database: Mapping[str, Any], where: str) -> dict[str, Any]:
    user = text_or_none(database.get("slurm_database_user"), f"{where}: slurm_database_user")
    secret = text(database.get("slurm_database_secret_arn"), f"{where}: slurm_database_secret_arn")
    return {
        "database": "external",
        "host": text(database.get("slurm_database_endpoint"), f"{where}: slurm_database_endpoint"),
        "user": user or "slurm",
        "password": {
            "command": [
                *("/usr/local/bin/aws", "secretsmanager", "get-secret-value", "--secret-id"),
                *(secret, "--query", "SecretString", "--output", "text"),
            ]
        },
    }
