"""What AWS ParallelCluster says to a custom action, as plain values for `load_description`.

A custom action finds /etc/parallelcluster/cfnconfig, lines of NAME=value for bash. The words of its
`Args:` are those of `muster create`, and on_node_configured.sh passes them on: where cluster.yaml
is, and dotted assignments. ParallelCluster writes slurm.conf and starts Slurm's daemons itself;
partitions, groups and their nodes stand in cluster.yaml.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from muster.errors import ConfigError, DataError

CFNCONFIG = Path("/etc/parallelcluster/cfnconfig")
_ROLE_OF = {"HeadNode": "head", "ComputeFleet": "compute", "LoginNode": "login"}


@dataclass(frozen=True)
class CfnConfig:
    """What cfnconfig says of the cluster and of this node."""

    cluster: str
    role: str  # head, login or compute, of this node
    head_address: Optional[str]
    queue: Optional[str]


def read_cfnconfig(path: Path = CFNCONFIG) -> CfnConfig:
    """Read cfnconfig, without running it.

    Raises:
        DataError: there is none, or its quotes do not close.
        ConfigError: it does not say what this node is.
    """
    try:
        words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    except (OSError, ValueError) as error:
        raise DataError(str(path), str(error), "run this on a node of ParallelCluster") from None
    values = dict(word.split("=", 1) for word in words if "=" in word)
    node_type = values.get("cfn_node_type", "")
    if node_type not in _ROLE_OF:
        fix = f"use one of {', '.join(_ROLE_OF)}"
        raise ConfigError(f"{path}: cfn_node_type", f"'{node_type}' is unknown", fix)
    return CfnConfig(
        cluster=values.get("stack_name", "").removeprefix("parallelcluster-") or "parallelcluster",
        role=_ROLE_OF[node_type],
        head_address=values.get("cfn_head_node_private_ip") or None,
        queue=values.get("cfn_scheduler_queue_name") or None,
    )


def platform_values(config: CfnConfig) -> dict[str, Any]:
    """What it says as the plain values of a cluster.yaml: no groups, those are the file's."""
    return {"name": config.cluster, "platform": "parallelcluster"}
