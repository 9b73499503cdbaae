"""`muster describe` looks at a cluster.yaml, `muster create` makes this machine a node of it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.argument_types import from_zero
from muster.errors import UsageError

if TYPE_CHECKING:
    from lifecycle.description.model import Description


def add_parser(subparsers: Any) -> None:
    """Add `describe` and `create`."""
    text = "check and show the description of a cluster: cluster.yaml, or what a platform says"
    parser = subparsers.add_parser("describe", help=text, description=text)
    parser.set_defaults(verb="describe", func=_describe)
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="print everything, defaults included")
    text = "make this machine the node that cluster.yaml says it is; run it as often as you like"
    create = subparsers.add_parser("create", help=text, description=text)
    create.set_defaults(verb="create", func=_create)
    add_source(create)
    create.add_argument("--check", action="store_true", help="only say what would change")
    create.add_argument("--from", dest="since", metavar="STEP", help="leave out those before")
    create.add_argument("--only", action="append", default=[], metavar="STEP")
    create.add_argument("--list", action="store_true", help="only list this node's steps")
    create.add_argument("--node", help="which node this machine is; its addresses say otherwise")
    create.add_argument("--wait-s", type=from_zero, default=300.0, help="for network and platform")
    create.add_argument("--steps", type=Path, default=Path(__file__).parent / "steps")
    create.add_argument("--state", type=Path, default=Path("/var/lib/muster/create"))
    create.add_argument("--logs", type=Path, default=Path("/var/log/muster/create"))
    create.add_argument("--secrets", type=Path, default=Path("/etc/muster/secrets"))


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

    words = args.assignments
    assignments = [word for word in words if "=" in word and "/" not in word.partition("=")[0]]
    files = [Path(word) for word in words if word not in assignments]
    _check_source(args, files)
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


def _check_source(args: argparse.Namespace, files: list[Path]) -> None:
    """Raise at what would not be looked at."""
    if len(files) > 1:
        raise UsageError("describe", f"'{files[1]}' is one file too many", "name one cluster.yaml")
    if files and args.user_data is not None:
        what = f"says what '{files[0]}' says, too"
        raise UsageError("--user-data", what, "name one of them")
    if args.provisioning is not None and args.resource_config is None:
        raise UsageError("--provisioning", "says nothing alone", "add --resource-config FILE")
    if args.cfnconfig is not None and args.resource_config is not None:
        what = "is ParallelCluster's, and --resource-config is HyperPod's"
        raise UsageError("--cfnconfig", what, "name one of them")


def _create(args: argparse.Namespace) -> int:
    from lifecycle.runner import run, whoami  # noqa: PLC0415
    from lifecycle.runner.execute import Places  # noqa: PLC0415
    from lifecycle.runner.ledger import Ledger  # noqa: PLC0415
    from lifecycle.runner.lock import only_one  # noqa: PLC0415

    def say(line: str) -> None:
        print(line, flush=True)

    began = time.monotonic()
    wait_s = args.wait_s
    description, node = whoami.arrive(lambda: description_of(args), args.node, wait_s, say)
    plan = run.plan(description, node, args.steps, dry=args.check, since=args.since, only=args.only)
    if args.list:
        print("\n".join(f"{step.name:14} {step.summary}" for step in plan.steps))
        return 0
    places = Places(args.state, args.logs, args.secrets, args.steps.parent / "lib")
    places.create()
    with only_one(places.state / "lock", wait_s):
        run.write_facts(plan, places)
        ledger = Ledger(places.state, node.name)
        try:
            tally = run.run_plan(plan, places, ledger, say)
        finally:
            if description.shared_dir is not None and not args.check:
                reason = ledger.copy_to(description.shared_dir / "ledger")
                if reason is not None:
                    say(f"the ledger's copy in {description.shared_dir} failed: {reason}")
    say(run.last_line(plan, tally, time.monotonic() - began))
    return 1 if args.check and (tally.names("differs") or tally.names("failed")) else 0


def _describe(args: argparse.Namespace) -> int:
    from lifecycle.description.load import as_json  # noqa: PLC0415

    description = description_of(args)
    if args.json:
        print(as_json(description), end="")
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
