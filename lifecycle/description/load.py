"""cluster.yaml, with what the platform says about its machines, into a checked `Description`.

A person knows partitions, users and mounts; the platform knows names and addresses, and only once
the machines exist. So a description may come in two parts: where both name a group, its nodes and
addresses are the platform's, all else is the file's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from lifecycle.description.check import check
from lifecycle.description.model import PLATFORMS, Description
from lifecycle.description.rules import unique
from muster.config import build, override, read_yaml
from muster.errors import ConfigError, did_you_mean

DEFAULT_PATH = Path("/etc/muster/cluster.yaml")
_OF_THE_PLATFORM = ("nodes", "addresses", "instance_type")
_PLATFORMS_SLURM = "/opt/slurm/etc"
"""Where HyperPod and ParallelCluster keep slurm.conf."""
_SECRETS = ("password", "munge_key")


def load_description(
    path: Optional[Path],
    assignments: Sequence[str] = (),
    platform: Optional[Mapping[str, Any]] = None,
) -> Description:
    """The description that a file gives, overrides and the platform's part on top.

    Args:
        path: cluster.yaml; None: the platform says everything.
        assignments: dotted overrides such as "slurm.lost_after_s=60".
        platform: plain values as a reader of this package gives them (hyperpod, parallelcluster).

    Raises:
        ConfigError: missing or unknown key, a value of the wrong type, or values that do not go
            together; with the place in the file.
    """
    values = read_yaml(path) if path is not None else {}
    return from_values(values, str(path or "cluster"), assignments, platform)


def from_values(
    values: Mapping[str, Any],
    where: str,
    assignments: Sequence[str] = (),
    platform: Optional[Mapping[str, Any]] = None,
) -> Description:
    """The same from values that are read already."""
    merged = override(dict(values), list(assignments))
    if platform is not None:
        merged = merge(merged, platform, where)
    if merged.get("platform") in PLATFORMS[1:] and isinstance(merged.get("slurm", {}), Mapping):
        merged["slurm"] = {"config_dir": _PLATFORMS_SLURM, **merged.get("slurm", {})}
    _refuse_secrets(merged, where)  # before any message could show one
    description = build(Description, merged, where)
    check(description, where)
    return description


def _refuse_secrets(value: Any, where: str) -> None:
    """Raise at a secret itself, wherever it stands: also where no key of that name belongs."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            _refuse_secrets(item, f"{where}[{i}]")
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if str(key).lower() in _SECRETS and not isinstance(inner, (Mapping, type(None))):
            fix = f"put it into a file of root's, and write '{key}: {{file: /path}}'"
            raise ConfigError(f"{where}: {key}", "a secret does not stand here", fix)
        _refuse_secrets(inner, f"{where}: {key}")


def merge(
    values: Mapping[str, Any], platform: Mapping[str, Any], where: str = "cluster.yaml"
) -> dict[str, Any]:
    """Both parts as one: the platform's machines, and its other keys where the file is silent.

    Raises:
        ConfigError: the file names a group that the platform does not have.
    """
    own = values.get("groups")
    groups = {group["name"]: dict(group) for group in platform.get("groups", [])}
    merged = {**platform, **values}
    known = list(groups)
    if not known or not isinstance(own, (list, type(None))):
        return merged
    named = [group for group in own or [] if isinstance(group, Mapping)]
    strange = [group for group in own or [] if not isinstance(group, Mapping)]  # `build` says why
    unique((str(group.get("name")) for group in named), f"{where}: groups")
    for group in named:
        name = str(group.get("name"))
        if name not in groups:
            what = f"the platform has no group '{name}'.{did_you_mean(name, known)}"
            raise ConfigError(f"{where}: groups", what, f"use one of {', '.join(known)}")
        theirs = {key: groups[name][key] for key in _OF_THE_PLATFORM if key in groups[name]}
        groups[name] = {**groups[name], **group, **theirs}
    merged["groups"] = [*groups.values(), *strange]
    return merged


def as_json(description: Description) -> str:
    """Everything, defaults included, as a text that `load_description` reads as a cluster.yaml."""
    return json.dumps(dataclasses.asdict(description), default=str, indent=2) + "\n"
