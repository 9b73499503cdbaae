"""What the local cloud and its customer write down: two files of the platform and a cluster.yaml.

Pure functions of a `Shape`. The cloud knows machines and addresses (resource_config.json, in the
form of HyperPod), the customer what each group is for (provisioning_parameters.json) and everything
else (cluster.yaml, as JSON, which is YAML too).
"""

from __future__ import annotations

from typing import Any

from muster.cluster.shape import CONTROLLER, Shape

CONTROLLERS, WORKERS, PARTITION = "controllers", "workers", "main"
SHARED = "/fsx"
CLOUD = "/opt/cloud"
"""On every machine: the programs that stand for its hardware and for the cloud's interface."""
USERS = (("ana", 2001), ("ben", 2002))
RESEARCH_GID = 2000


def resource_config(shape: Shape) -> dict[str, Any]:
    """The machines that there are, as the platform lists them."""
    return {
        "ClusterType": "Slurm",
        "ClusterConfig": {"ClusterName": "local", "ClusterArn": "arn:local:cluster/local"},
        "SlurmConfig": {"PrimaryControllerIp": shape.address(CONTROLLER)},
        "InstanceGroups": [
            _group(shape, CONTROLLERS, (CONTROLLER,)),
            _group(shape, WORKERS, shape.names),
            {"Name": "ordered", "Instances": None},  # no machine yet: the platform says null
        ],
    }


def _group(shape: Shape, group: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "Name": group,
        "Instances": [
            {
                "InstanceName": f"{group}-{number}",
                "InstanceId": f"i-local-{name}",
                "AgentIpAddress": "",
                "CustomerIpAddress": shape.address(name),
            }
            for number, name in enumerate(names, 1)
        ],
    }


def provisioning() -> dict[str, Any]:
    """What each group is for."""
    return {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": CONTROLLERS,
        "worker_groups": [
            {"instance_group_name": WORKERS, "partition_name": PARTITION},
            {"instance_group_name": "ordered", "partition_name": PARTITION},
        ],
    }


def cluster_yaml(shape: Shape) -> dict[str, Any]:
    """What no platform knows. `plain`: this cloud leaves munge, accounting and Slurm to us."""
    hardware: dict[str, Any] = {
        "sockets": 1,
        "cores_per_socket": shape.cpus,
        "threads_per_core": 1,
        "memory_mib": 2000,
    }
    if shape.gpus:
        hardware.update(gpus=shape.gpus, gpu_type="h100")
    return {
        "name": "local",
        "platform": "plain",
        "groups": [
            {"name": CONTROLLERS, "role": "head"},
            {"name": WORKERS, "role": "compute", "hardware": hardware},
        ],
        "mounts": [{"path": SHARED, "kind": "existing", "wait_s": 120}],
        "shared_dir": f"{SHARED}/.muster",
        "scratch": {"kinds": ["folder"], "min_free_gib": 0.05},
        "users": {
            "home": f"{SHARED}/home",
            "groups": [{"name": "research", "gid": RESEARCH_GID}],
            "users": [{"name": name, "uid": uid, "group": "research"} for name, uid in USERS],
        },
        "accounting": {"database": "local" if shape.accounting else "off"},
        "slurm": {
            "cgroup": False,
            "lost_after_s": 6,
            "kill_wait_s": 8,
            "health_interval_s": 30,
            # A node may claim more than this machine has.
            "settings": {"SlurmdParameters": "config_overrides", **dict(shape.settings)},
        },
        "health": {"profile": {8: "local", 0: "cpu"}.get(shape.gpus, "auto")},
        "replace_command": [f"{CLOUD}/bin/bmc", "replace", "{node}"],
        "reboot_command": [f"{CLOUD}/bin/bmc", "reboot", "{node}"],
    }
