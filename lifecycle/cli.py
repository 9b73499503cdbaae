"""`muster describe`: look at a cluster.yaml before a machine does."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.errors import UsageError

if TYPE_CHECKING:
    from lifecycle.description.model import Description


def add_parser(subparsers: Any) -> None:
    """Add `describe`."""
    text = "check and show the description of a cluster: cluster.yaml, or what a platform says"
    parser = subparsers.add_parser("describe", help=text, description=text)
    parser.set_defaults(verb="describe", func=_describe)
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="print everything, defaults included")


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where the description comes from."""
    parser.add_argument("assignments", nargs="*", metavar="CLUSTER_YAML|KEY=VALUE", default=[])
    parser.add_argument("--resource-config", type=Path, metavar="FILE", help="HyperPod's")
    parser.add_argument("--provisioning", type=Path, metavar="FILE", help="HyperPod's")
    parser.add_argument("--cfnconfig", type=Path, metavar="FILE", help="ParallelCluster's")
    parser.add_argument("--user-data", type=Path, metavar="FILE", help="cloud-init's")


def description_of(args: argparse.Namespace) -> Description:
    """The description that the arguments name.

    Raises:
        UsageError: they name none.
        ConfigError: it is wrong.
        DataError: a platform's file is missing or damaged.
    """
    from lifecycle.description import cloud_init, hyperpod, load, parallelcluster  # noqa: PLC0415

    files = [Path(word) for word in args.assignments if "=" not in word]
    assignments = [word for word in args.assignments if "=" in word]
    if len(files) > 1:
        raise UsageError("describe", f"'{files[1]}' is one file too many", "name one cluster.yaml")
    platform = None
    if args.resource_config is not None:
        given = args.provisioning
        provisioning = hyperpod.read_provisioning(given) if given else None
        platform = hyperpod.platform_values(
            hyperpod.read_resource_config(args.resource_config), provisioning
        )
    elif args.cfnconfig is not None:
        platform = parallelcluster.platform_values(parallelcluster.read_cfnconfig(args.cfnconfig))
    if args.user_data is not None:
        values = cloud_init.read_user_data(args.user_data)
        return load.from_values(values, str(args.user_data), assignments, platform)
    if not files and platform is None:
        raise UsageError("describe", "no description", "name a cluster.yaml")
    return load.load_description(files[0] if files else None, assignments, platform)


def _describe(args: argparse.Namespace) -> int:
    description = description_of(args)
    if args.json:
        print(json.dumps(dataclasses.asdict(description), default=str, indent=2))
    else:
        print("\n".join(summary(description)))
    return 0


def summary(description: Description) -> list[str]:
    """The description in a few lines, for people."""
    from lifecycle.description.instance_types import hardware_of  # noqa: PLC0415
    from lifecycle.description.nodes import names_of  # noqa: PLC0415

    lines = [f"cluster '{description.name}' ({description.platform})"]
    for group in description.groups:
        hardware = hardware_of(group)
        gpus = f", {hardware.gpus} x {hardware.gpu_type} each" if hardware and hardware.gpus else ""
        spares = f", {group.spares} spare" if group.spares else ""
        names = ",".join(group.nodes)
        shown = names if len(names) <= 40 else f"{names[:37]}..."
        count = len(names_of(group))
        lines.append(f"  {group.role:8} {group.name:12} {count:5} nodes {shown}{gpus}{spares}")
    for partition in description.partitions:
        default = ", default" if partition.default else ""
        yields = "" if partition.preempt == "off" else f", yields by {partition.preempt}"
        groups = " ".join(partition.groups)
        tier = f"tier {partition.priority_tier}"
        lines.append(f"  partition {partition.name}: {groups}, {tier}{default}{yields}")
    lines += [f"  mount {mount.path}: {mount.kind}" for mount in description.mounts]
    return lines
