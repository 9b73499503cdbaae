"""The part of a description that is about Slurm itself: do the values go together?"""

from __future__ import annotations

import re

from lifecycle.description.check_people import check_secret
from lifecycle.description.host_list import expand
from lifecycle.description.model import TOPOLOGIES, Description, Slurm, Switch
from lifecycle.description.nodes import of_role
from lifecycle.description.rules import UINT16, absolute, one_of, unique, within
from muster.errors import ConfigError

OWNED = (
    *("AccountingStorageHost", "AccountingStorageType", "ClusterName", "GresTypes", "Include"),
    *("NodeName", "PartitionName", "SlurmUser", "SlurmctldHost", "StateSaveLocation"),
)
"""Keys of slurm.conf that other keys of the description decide."""

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_CUT = re.compile(r"(?<!\\)#|\\$")  # a comment, and a line that goes on
_SWITCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def check_slurm(description: Description, where: str) -> None:
    """Raise at a value that Slurm would refuse, or that something else decides.

    Raises:
        ConfigError: with the key it concerns.
    """
    slurm = description.slurm
    for key in ("config_dir", "state_dir"):
        absolute(getattr(slurm, key), f"{where}: {key}")
    if not _USER.fullmatch(slurm.user):
        raise ConfigError(f"{where}: user", f"{slurm.user!r} is no user", "user: slurm")
    if slurm.requeue_wait_s < 5:
        what = f"{slurm.requeue_wait_s} is below 5: Slurm would take 120"
        raise ConfigError(f"{where}: requeue_wait_s", what, "requeue_wait_s: 5")
    for key in ("requeue_wait_s", "lost_after_s", "kill_wait_s", "health_interval_s", "uid"):
        within(getattr(slurm, key), 1, UINT16, f"{where}: {key}")
    _check_own_user(description, where)
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


def _check_own_user(description: Description, where: str) -> None:
    slurm = description.slurm
    for user in description.users.users:
        if user.uid == slurm.uid:
            what = f"{slurm.uid} is that of '{user.name}' already"
            raise ConfigError(f"{where}: uid", what, "give each its own")
    people = [user.name for user in description.users.users]
    for name in (*people, *(group.name for group in description.users.groups)):
        if name == slurm.user:
            what = f"'{name}' is a person or a group of users"
            raise ConfigError(f"{where}: user", what, "give Slurm a user of its own")


def _check_settings(slurm: Slurm, where: str) -> None:
    owned = {key.lower(): key for key in OWNED}
    unique((key.lower() for key in slurm.settings), where)
    for key, value in slurm.settings.items():
        if key.lower() in owned:
            what = f"{owned[key.lower()]} follows from other keys"
            raise ConfigError(where, what, "leave it out and change those")
        if not _KEY.fullmatch(key):
            raise ConfigError(where, f"{key!r} is no key of slurm.conf", "write Key: value")
        if not value.strip() or not value.isprintable() or _CUT.search(value):
            what = f"{value!r} is no value of one line of slurm.conf"
            raise ConfigError(f"{where}: {key}", what, "write Key: value")


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
        if not _SWITCH.fullmatch(switch.name):
            what = f"{switch.name!r} is no name"
            raise ConfigError(where, what, "use letters, digits, - _ and .")
        _check_below(switch, slurm, here)
        for node in (name for text in switch.nodes for name in expand(text, here)):
            one_of(node, sorted(compute), f"{here}: nodes")
            if node in owner:
                what = f"'{node}' is below '{owner[node]}' already"
                raise ConfigError(here, what, "name it once")
            owner[node] = switch.name
    _check_tree(slurm, where)
    if slurm.switches and compute - owner.keys():
        what = f"'{min(compute - owner.keys())}' is below none: no job would run across"
        raise ConfigError(where, what, "add it to one")


def _check_tree(slurm: Slurm, where: str) -> None:
    parent: dict[str, str] = {}
    for switch in slurm.switches:
        for below in switch.switches:
            if below in parent:
                what = f"'{below}' is below '{parent[below]}' already"
                raise ConfigError(f"{where}: {switch.name}", what, "name it once")
            parent[below] = switch.name
    for switch in slurm.switches:
        above, seen = parent.get(switch.name), {switch.name}
        while above is not None and above not in seen:
            seen.add(above)
            above = parent.get(above)
        if above is not None:
            what = f"'{above}' is below itself"
            raise ConfigError(f"{where}: {switch.name}", what, "leave one of them out")


def _check_below(switch: Switch, slurm: Slurm, here: str) -> None:
    if not switch.nodes and not switch.switches:
        raise ConfigError(here, "has neither nodes nor switches", "name what is below it")
    if switch.switches and slurm.topology == "block":
        raise ConfigError(here, "blocks have only nodes", "leave out 'switches'")
    others = [other.name for other in slurm.switches if other is not switch]
    for below in switch.switches:
        one_of(below, others, f"{here}: switches")
