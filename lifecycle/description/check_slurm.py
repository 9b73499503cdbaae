"""The part of a description that is about Slurm itself: do the values go together?"""

from __future__ import annotations

from lifecycle.description.check_people import check_secret
from lifecycle.description.host_list import expand
from lifecycle.description.model import TOPOLOGIES, Description, Slurm, Switch
from lifecycle.description.nodes import of_role
from lifecycle.description.rules import one_of, unique
from muster.errors import ConfigError

OWNED = (
    *("AccountingStorageHost", "AccountingStorageType", "ClusterName", "GresTypes", "Include"),
    *("NodeName", "PartitionName", "SlurmUser", "SlurmctldHost", "StateSaveLocation"),
)
"""Keys of slurm.conf that other keys of the description decide."""


def check_slurm(description: Description, where: str) -> None:
    """Raise at a value that Slurm would refuse, or that something else decides.

    Raises:
        ConfigError: with the key it concerns.
    """
    slurm = description.slurm
    for key in ("config_dir", "state_dir"):
        if not getattr(slurm, key).is_absolute():
            raise ConfigError(f"{where}: {key}", "is not absolute", f"{key}: /etc/slurm")
    if slurm.requeue_wait_s < 5:
        what = f"{slurm.requeue_wait_s} is below 5: Slurm would take 120"
        raise ConfigError(f"{where}: requeue_wait_s", what, "requeue_wait_s: 5")
    for key in ("lost_after_s", "kill_wait_s", "health_interval_s"):
        if getattr(slurm, key) < 1:
            raise ConfigError(f"{where}: {key}", "is below 1", "leave it out")
    if not 1 <= slurm.uid <= 65533:
        raise ConfigError(f"{where}: uid", f"{slurm.uid} is not from 1 to 65533", "leave it out")
    if slurm.munge_key is not None:
        check_secret(slurm.munge_key, f"{where}: munge_key")
    if len(of_role(description, "head")) > 1 and not any(
        mount.path == slurm.state_dir or mount.path in slurm.state_dir.parents
        for mount in description.mounts
    ):
        what = f"{slurm.state_dir} is below no mount, and there are several head nodes"
        raise ConfigError(f"{where}: state_dir", what, "name a folder that all of them see")
    _check_settings(slurm, f"{where}: settings")
    _check_switches(description, f"{where}: switches")


def _check_settings(slurm: Slurm, where: str) -> None:
    owned = {key.lower(): key for key in OWNED}
    for key, value in slurm.settings.items():
        if key.lower() in owned:
            what = f"{owned[key.lower()]} follows from other keys"
            raise ConfigError(where, what, "leave it out and change those")
        if not key.isalnum() or "\n" in value or not value:
            raise ConfigError(where, f"'{key}' is no line of slurm.conf", "write Key: value")


def _check_switches(description: Description, where: str) -> None:
    slurm = description.slurm
    one_of(slurm.topology, TOPOLOGIES, f"{where}: topology")
    if (slurm.topology == "none") != (not slurm.switches):
        what = f"topology is '{slurm.topology}', and there are {len(slurm.switches)} switches"
        raise ConfigError(where, what, "give both or none")
    unique((switch.name for switch in slurm.switches), where)
    compute = {node.name for node in of_role(description, "compute")}
    owner: dict[str, str] = {}
    for switch in slurm.switches:
        here = f"{where}: {switch.name}"
        _check_below(switch, slurm, here)
        for node in (name for text in switch.nodes for name in expand(text, here)):
            one_of(node, sorted(compute), f"{here}: nodes")
            if node in owner:
                what = f"'{node}' is below '{owner[node]}' already"
                raise ConfigError(here, what, "name it once")
            owner[node] = switch.name
    if slurm.switches and compute - owner.keys():
        what = f"'{min(compute - owner.keys())}' is below none: no job would run across"
        raise ConfigError(where, what, "add it to one")


def _check_below(switch: Switch, slurm: Slurm, here: str) -> None:
    if not switch.nodes and not switch.switches:
        raise ConfigError(here, "has neither nodes nor switches", "name what is below it")
    if switch.switches and slurm.topology == "block":
        raise ConfigError(here, "blocks have only nodes", "leave out 'switches'")
    others = [other.name for other in slurm.switches if other is not switch]
    for below in switch.switches:
        one_of(below, others, f"{here}: switches")
