"""`muster cluster up|down|status|exec|node`: the local cluster on the command line."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

from muster.argument_types import above_zero, count, from_zero
from muster.cluster import people
from muster.cluster.cluster import BREAKS, HEAD_VERBS, UP_TIMEOUT_S, VERBS, LocalCluster
from muster.cluster.shape import Shape, setting
from muster.errors import MusterError, UsageError

if TYPE_CHECKING:
    from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add `cluster` and its verbs."""
    cluster = subparsers.add_parser(
        "cluster", help="a real Slurm cluster on this machine, to try things and to break them"
    )
    cluster.set_defaults(verb="cluster")
    _add_verbs(cluster.add_subparsers(dest="cluster_verb", metavar="VERB", required=True))


def _add_verbs(verbs: Any) -> None:
    default = Shape()
    up = _verb(verbs, "up", _up, "bring it up; returns when all nodes are idle")
    up.add_argument("--nodes", type=count, default=default.nodes, help="default %(default)s")
    up.add_argument("--gpus", type=int, default=default.gpus, help="fake H100s per node")
    up.add_argument("--cpus", type=count, default=default.cpus, help="CPUs per node")
    up.add_argument("--boot-s", type=from_zero, default=default.boot_s, help="duration of a boot")
    up.add_argument("--set", action="append", default=[], metavar="Key=Value", dest="settings")
    up.add_argument(
        "--prolog", action="store_true", help="check nodes in Slurm's prolog and epilog"
    )
    up.add_argument("--out-of-service", action="append", default=[], metavar="NODE")
    up.add_argument("--people", metavar="ana,ben", help="users (root only)")
    up.add_argument(
        "--created",
        action="store_true",
        help="machines with roots of their own, made nodes by lifecycle/ (root only)",
    )
    up.add_argument("--fresh", action="store_true", help="with --created: on empty disks")
    up.add_argument(
        "--accounting",
        action="store_true",
        help="with --created: MariaDB and slurmdbd on the head",
    )
    up.add_argument("--owner-pid", type=int, help="end the cluster when this process ends")
    up.add_argument("--timeout-s", type=above_zero, default=UP_TIMEOUT_S)
    down = _verb(verbs, "down", _down, "end it and remove its files")
    down.add_argument("--keep-logs", action="store_true")
    create = _verb(verbs, "create", _create, "run lifecycle/on_create.sh on created machines")
    create.add_argument("machines", nargs="*", metavar="NODE", help="default: all, and the head n0")
    status = _verb(verbs, "status", _status, "one line per node; exit code 1 when it is down")
    status.add_argument("--json", action="store_true")
    exec_ = _verb(verbs, "exec", _exec, "run a command on the head or on a node")
    exec_.add_argument("--node", help="on this node instead of the head")
    exec_.add_argument("--user", help="as this user (root only)")
    exec_.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...")
    node = _verb(verbs, "node", _node, "do something to a node")
    node.add_argument("node_verb", metavar="{" + ",".join(VERBS) + "}")
    node.add_argument("node", metavar="NODE")
    node.add_argument("gpu", type=int, nargs="?", metavar="GPU", help="for gpu-break: its index")
    node.add_argument("--how", default=BREAKS[0], help=f"for gpu-break: {', '.join(BREAKS)}")
    node.add_argument("--text", help="for kernel-line: what the node's kernel says")
    node.add_argument("--path", help="for hide and show: a folder")
    node.add_argument("--silent", action="store_true", help="for kill: without a last packet")
    head = _verb(verbs, "head", _head, "do something to what all nodes share")
    head.add_argument("head_verb", metavar="{" + ",".join(HEAD_VERBS) + "}")
    head.add_argument("node", nargs="?", metavar="NODE", help="for name-forget, name-recall")


def _verb(verbs: Any, name: str, func: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("--name", default="local", help="which cluster (default %(default)s)")
    parser.set_defaults(func=func)
    return parser


def _up(args: argparse.Namespace) -> int:
    shape = Shape(
        nodes=args.nodes,
        gpus=args.gpus,
        cpus=args.cpus,
        boot_s=args.boot_s,
        settings=tuple(setting(text) for text in args.settings),
        prolog=args.prolog,
        out_of_service=tuple(args.out_of_service),
        created=args.created,
        people=people.names(args.people) if args.people is not None else (),
        accounting=args.accounting,
    )
    if args.fresh and not args.created:
        raise UsageError("--fresh", "goes with --created", "muster cluster up --created --fresh")
    began = time.monotonic()
    cluster = LocalCluster(args.name, shape)
    if cluster.up(args.owner_pid, args.timeout_s, fresh=args.fresh):
        took = time.monotonic() - began
        counts = collections.Counter(cluster.states().values())
        nodes = ", ".join(f"{count} {state}" for state, count in counts.items())
        print(f"cluster '{args.name}' is up after {took:.1f} s: {nodes}")
    else:
        print(f"cluster '{args.name}' is up already")
    return 0


def _down(args: argparse.Namespace) -> int:
    was_up = LocalCluster(args.name).down(keep_logs=args.keep_logs)
    print(f"cluster '{args.name}' is down" if was_up else f"cluster '{args.name}' was not up")
    return 0


def _create(args: argparse.Namespace) -> int:
    from muster.cluster.created import creation  # noqa: PLC0415 - most clusters do without

    cluster = LocalCluster(args.name)
    shape = cluster.created_shape()
    names = [shape.check_node(name) for name in args.machines] or shape.machines
    done = creation.create(cluster, names)
    for name, created in done.items():
        print(f"{name}: {created.last}")
    return max(created.rc for created in done.values())


def _status(args: argparse.Namespace) -> int:
    status = LocalCluster(args.name).status()
    if args.json:
        print(json.dumps(dataclasses.asdict(status)))
        return 0 if status.state == "up" else 1
    print(f"cluster '{status.name}' is {status.state} ({status.folder})")
    for node in status.nodes:
        power = "on " if node.powered else "off"
        print(
            f"{node.name:4} {node.state:12} {power} {node.address:12} "
            f"{node.gpus_ok} GPUs  boot {node.boot_id[:8]}  {node.reason}".rstrip()
        )
    return 0 if status.state == "up" else 1


def _exec(args: argparse.Namespace) -> int:
    argv = _command(args.argv)
    return LocalCluster(args.name).enter(argv, args.node, args.user)


def _machine(args: argparse.Namespace) -> int:
    return LocalCluster(args.name).run_machine(_command(args.argv))


def _node(args: argparse.Namespace) -> int:
    if (args.gpu is None) == (args.node_verb == "gpu-break"):
        raise UsageError(
            f"node {args.node_verb}",
            "a GPU index goes with gpu-break, and only there",
            "muster cluster node gpu-break n1 3",
        )
    if bool(args.text) != (args.node_verb == "kernel-line"):
        raise UsageError(
            f"node {args.node_verb}",
            "--text goes with kernel-line, and only there",
            "muster cluster node kernel-line n1 --text 'NVRM: ...'",
        )
    if bool(args.path) != (args.node_verb in ("hide", "show")):
        raise UsageError(
            f"node {args.node_verb}",
            "--path goes with hide and show, and only there",
            "muster cluster node hide n1 --path /shared/folder",
        )
    LocalCluster(args.name).node(
        args.node_verb,
        args.node,
        silent=args.silent,
        gpu=args.gpu or 0,
        how=args.how,
        text=args.text or "",
        path=args.path or "",
    )
    return 0


def _head(args: argparse.Namespace) -> int:
    LocalCluster(args.name).head(args.head_verb, args.node)
    return 0


def _command(argv: list[str]) -> list[str]:
    argv = argv[1:] if argv[:1] == ["--"] else argv
    if not argv:
        raise UsageError("cluster exec", "no command", "muster cluster exec -- sinfo")
    return argv


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """One line, exit code 64, as muster's own parser."""
        self.exit(64, f"{self.prog}: {message}. Fix: see '{self.prog} --help'\n")


def main() -> None:
    """`exec` and node verbs for `LocalCluster`, without loading the rest of muster."""
    parser = _Parser(prog="muster cluster")
    verbs = parser.add_subparsers(required=True)
    _add_verbs(verbs)
    machine = _verb(verbs, "machine", _machine, "run one of our scripts on the head")
    machine.add_argument("argv", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        sys.exit(args.func(args))
    except MusterError as error:
        print(f"muster cluster: {error}", file=sys.stderr)
        sys.exit(error.code)
