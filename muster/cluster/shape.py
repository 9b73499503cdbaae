"""What a local cluster looks like: how many nodes, with what in them. Pure data, checked once."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from muster.errors import UsageError

HEAD = "head"
CONTROLLER = "n0"
"""The machine of the head, where every machine has a root of its own."""
SUBNET = "10.77.0"
MAX_NODES = 64
MAX_GPUS = 16
FIRST_NODE_ADDRESS = 11
"""n1 is 10.77.0.11; the head is 10.77.0.1. Nothing of it is reachable from outside the cluster."""

_SETTING = re.compile(r"[A-Za-z][A-Za-z0-9]*")


@dataclass(frozen=True)
class Shape:
    """The facts that make two clusters the same.

    Attributes:
        nodes: number of compute nodes, named n1, n2, ...
        gpus: fake H100s in each node, as GRES; 0: none.
        cpus: CPUs Slurm may give per node; more than the machine has is fine.
        boot_s: seconds a node needs from power-on to its first process.
        settings: extra or replacing slurm.conf keys.
        prolog: Slurm checks a node with muster's prolog and epilog before and after every job.
        out_of_service: nodes that an administrator drained before anybody came.
        created: machines with roots of their own, made nodes by lifecycle/.
        people: users that only the cluster knows, each with a home of its own.
        accounting: of a created cluster: MariaDB and slurmdbd run on its head.
    """

    nodes: int = 8
    gpus: int = 8
    cpus: int = 8
    boot_s: float = 1.0
    settings: tuple[tuple[str, str], ...] = ()
    prolog: bool = False
    out_of_service: tuple[str, ...] = ()
    created: bool = False
    accounting: bool = False
    people: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _within("--nodes", self.nodes, 1, MAX_NODES)
        _within("--gpus", self.gpus, 0, MAX_GPUS)
        _within("--cpus", self.cpus, 1, 1024)
        _within("--boot-s", self.boot_s, 0, 600)
        for name in self.out_of_service:
            self.check_node(name)
        if self.created and (self.prolog or self.out_of_service or self.people):
            what = "goes with clusters that are not created"
            option = "--prolog, --out-of-service or --people"
            raise UsageError(option, what, "leave one of both out")
        if self.accounting and not self.created:
            raise UsageError("--accounting", "goes with --created", "add it, or leave it out")

    @property
    def names(self) -> tuple[str, ...]:
        """Host names of the compute nodes."""
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    @property
    def machines(self) -> tuple[str, ...]:
        """What can be switched on and off: the nodes, and the head if it is a machine."""
        return (CONTROLLER, *self.names) if self.created else self.names

    def slurm_name(self, name: str) -> str:
        """What Slurm calls a machine: on a cloud, by its address."""
        return f"ip-{self.address(name).replace('.', '-')}" if self.created else name

    def address(self, name: str) -> str:
        """Address of a compute node."""
        return f"{SUBNET}.{FIRST_NODE_ADDRESS - 1 + int(name[1:])}"

    def check_node(self, name: str) -> str:
        """`name`, if there is such a node.

        Raises:
            UsageError: there is none.
        """
        if name not in self.machines:
            raise UsageError(
                f"node {name!r}",
                "no such node in this cluster",
                f"name one of {self.names[0]}..{self.names[-1]}",
            )
        return name

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the cluster's state file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Shape:
        """The inverse of `to_json` after a trip through JSON, which has no tuples."""
        settings = tuple((str(key), str(value)) for key, value in data["settings"])
        lists = {name: tuple(data[name]) for name in ("out_of_service", "people")}
        return cls(**{**data, **lists, "settings": settings})


def setting(text: str) -> tuple[str, str]:
    """('Key', 'Value') of a `--set Key=Value`.

    Raises:
        UsageError: it has another form, or names what `--nodes`, `--gpus` and `--cpus` decide.
    """
    key, equals, value = text.partition("=")
    if not equals or not _SETTING.fullmatch(key) or "\n" in value:
        raise UsageError(f"--set {text!r}", "not of the form Key=Value", "--set SlurmdTimeout=10")
    if key.lower() == "nodename":
        raise UsageError(
            f"--set {text!r}", "the nodes are not a setting", "use --nodes, --gpus and --cpus"
        )
    return key, value


def _within(option: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{option} {value:g}", f"outside {low}..{high}", f"choose {low} to {high}")
