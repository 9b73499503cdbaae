"""What HyperPod says about its cluster, as plain values for `load_description`.

resource_config.json is written by the platform onto every node (path in
$SAGEMAKER_RESOURCE_CONFIG_PATH) and lists machines; provisioning_parameters.json is written by a
person and says what each group is for. Clusters that are configured through the API have no such
file: there each group carries a `SlurmConfig`, and its file systems. Unknown keys are the
platform's future and do not matter, unless they are nearly a known one of the person's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from muster.errors import ConfigError, DataError, did_you_mean

RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
_ROLE_OF = {"Controller": "head", "Login": "login", "Compute": "compute"}
STRATEGIES = ("Overwrite", "Managed", "Merge")


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
    values = _read(path)
    where = str(path)
    cluster = _mapping(values.get("ClusterConfig"), f"{where}: ClusterConfig")
    slurm = _mapping(values.get("SlurmConfig") or {}, f"{where}: SlurmConfig")
    orchestrator = _mapping(values.get("Orchestrator") or {}, f"{where}: Orchestrator")
    strategy = next(
        (
            place.get("SlurmConfigStrategy")
            for place in (slurm, cluster, values, orchestrator.get("Slurm") or {})
            if place.get("SlurmConfigStrategy")
        ),
        None,
    )
    if strategy is not None:
        _one_of(strategy, STRATEGIES, f"{where}: SlurmConfigStrategy")
    primary = slurm.get("PrimaryControllerIp")
    secondary = slurm.get("SecondaryControllerIps") or []
    return ResourceConfig(
        cluster=_text(cluster.get("ClusterName"), f"{where}: ClusterConfig: ClusterName"),
        groups=[
            _group(item, f"{where}: InstanceGroups[{i}]")
            for i, item in enumerate(
                _list(values.get("InstanceGroups"), f"{where}: InstanceGroups")
            )
        ],
        controllers=[str(address) for address in [primary, *secondary] if address],
        strategy=strategy,
    )


def read_provisioning(path: Path) -> Provisioning:
    """Read and check provisioning_parameters.json.

    Raises:
        DataError: missing or not JSON.
        ConfigError: a key is missing, misspelt, or has a wrong value.
    """
    values, where = _read(path), str(path)
    known = (
        *("version", "workload_manager", "controller_group", "login_group", "worker_groups"),
        *("fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name", "slurm_configurations"),
    )
    for key in values:
        hint = did_you_mean(key, known) if key not in known else ""
        if hint:
            raise ConfigError(where, f"unknown key '{key}'.{hint}", "correct it")
    manager = values.get("workload_manager", "slurm")
    _one_of(manager, ["slurm"], f"{where}: workload_manager")
    workers: dict[str, Optional[str]] = {}
    for i, item in enumerate(_list(values.get("worker_groups") or [], f"{where}: worker_groups")):
        here = f"{where}: worker_groups[{i}]"
        name = _text(_mapping(item, here).get("instance_group_name"), f"{here}.instance_group_name")
        workers[name] = item.get("partition_name") or None
    database = values.get("slurm_configurations")
    return Provisioning(
        controller=_text(values.get("controller_group"), f"{where}: controller_group"),
        login=values.get("login_group") or None,
        workers=workers,
        mounts=_mounts_of_parameters(values, where),
        database=_database(database, f"{where}: slurm_configurations") if database else None,
        shared_dir=(database or {}).get("slurm_shared_directory") or None,
    )


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
            _one_of(name, names, "provisioning_parameters.json: a group of resource_config.json")
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
    group = _mapping(value, where)
    slurm = _mapping(group.get("SlurmConfig") or {}, f"{where}: SlurmConfig")
    node_type = slurm.get("NodeType")
    if node_type is not None:
        _one_of(node_type, _ROLE_OF, f"{where}: SlurmConfig: NodeType")
    return InstanceGroup(
        name=_text(group.get("Name") or group.get("InstanceGroupName"), f"{where}: Name"),
        instance_type=group.get("InstanceType") or None,
        instances=[
            _instance(item, f"{where}: Instances[{i}]")
            for i, item in enumerate(_list(group.get("Instances") or [], f"{where}: Instances"))
        ],
        role=_ROLE_OF[node_type] if node_type else None,
        partitions=[str(name) for name in slurm.get("PartitionNames") or []],
        mounts=_mounts_of_group(group, where),
    )


def _instance(value: Any, where: str) -> Instance:
    instance = _mapping(value, where)
    address = _text(
        instance.get("CustomerIpAddress") or instance.get("AgentIpAddress"),
        f"{where}: CustomerIpAddress",
    )
    return Instance(
        name=f"ip-{address.replace('.', '-').replace(':', '-')}",
        instance_id=str(instance.get("InstanceId") or ""),
        address=address,
    )


def _mounts_of_group(group: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    mounts = []
    for i, item in enumerate(group.get("InstanceStorageConfigs") or []):
        here = f"{where}: InstanceStorageConfigs[{i}]"
        for key, kind, default in (
            ("FsxLustreConfig", "lustre", "/fsx"),
            ("FsxOpenZfsConfig", "openzfs", "/home"),
        ):
            config = _mapping(item, here).get(key)
            if config:
                dns = _text(config.get("DnsName"), f"{here}: {key}: DnsName")
                path = str(config.get("MountPath") or default)
                mounts.append(_mount(kind, path, dns, config.get("MountName")))
    return mounts


def _mounts_of_parameters(values: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    mounts = []
    if values.get("fsx_dns_name"):
        name = _text(values.get("fsx_mountname"), f"{where}: fsx_mountname")
        mounts.append(_mount("lustre", "/fsx", str(values["fsx_dns_name"]), name))
    if values.get("fsx_openzfs_dns_name"):
        mounts.append(_mount("openzfs", "/home", str(values["fsx_openzfs_dns_name"]), None))
    return mounts


def _mount(kind: str, path: str, dns: str, name: Optional[str]) -> dict[str, Any]:
    # The service mounts Lustre by TCP at the name it gives out, and exports one tree of OpenZFS.
    source = f"{dns}@tcp:/{name or 'fsx'}" if kind == "lustre" else f"{dns}:/fsx"
    return {"path": path, "kind": kind, "source": source}


def _database(value: Any, where: str) -> dict[str, Any]:
    database = _mapping(value, where)
    secret = _text(database.get("slurm_database_secret_arn"), f"{where}: slurm_database_secret_arn")
    return {
        "database": "external",
        "host": _text(database.get("slurm_database_endpoint"), f"{where}: slurm_database_endpoint"),
        "user": str(database.get("slurm_database_user") or "slurm"),
        "password": {
            "command": [
                *("/usr/local/bin/aws", "secretsmanager", "get-secret-value", "--secret-id"),
                *(secret, "--query", "SecretString", "--output", "text"),
            ]
        },
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(str(path), "no such file", "wait for the platform, or name it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(str(path), f"is no JSON: {error}", "correct or fetch it again") from None
    return _mapping(value, str(path))


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(where, f"{type(value).__name__} where an object belongs", "write {...}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(where, f"{type(value).__name__} where a list belongs", "write [...]")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(where, "is missing or empty", "add it")
    return value


def _one_of(value: Any, known: Any, where: str) -> None:
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ConfigError(where, f"'{value}' is unknown.{hint}", f"use one of {', '.join(known)}")
