"""`LocalCluster`: bring a cluster up, break it, look at it, take it down; for CLI and tests."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from muster import process
from muster.cluster import enter, packages, people
from muster.cluster.folder import Folder, check_ours, stop, wait_end
from muster.cluster.shape import Shape
from muster.errors import TemporaryError, UnavailableError, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.process import Completed

CHECKOUT = Path(__file__).resolve().parents[2]
UP_TIMEOUT_S = 60.0
VERB_TIMEOUT_S = 90.0
BREAKS = ("lost", "gone", "ecc")
VERBS = {
    "kill": "off",
    "start": "on",
    "reboot": "reboot",
    "replace": "replace",
    "cut": "cut",
    "uncut": "uncut",
    "freeze": "freeze",
    "thaw": "thaw",
    "slurmd-kill": "slurmd-kill",
    "slurmd-start": "slurmd-start",
    "gpu-break": "gpu-break",
    "kernel-line": "kernel-line",
    "hide": "hide",
    "show": "show",
}
"""What one can do to a node, and the request of `machine.sh` that does it."""

NOT_ON_MACHINES = ("slurmd-kill", "slurmd-start")
"""Machines with a root of their own run their daemons as theirs."""

HEAD_VERBS = (
    *("slurmctld-stop", "slurmctld-start", "disk-fill", "disk-free"),
    *("disk-read-only", "disk-writable", "name-forget", "name-recall"),
)
"""What one can do to what all nodes share: requests of `head.sh`."""

_RUN_MODULE = "import sys; sys.path[0] = {root!r}; from muster.cluster.{module} import main; main()"


@dataclass(frozen=True)
class NodeStatus:
    """One node: what Slurm says and what the hardware says."""

    name: str
    state: str
    address: str
    powered: bool
    boot_id: str
    gpus_ok: int
    reason: str


@dataclass(frozen=True)
class Status:
    """A cluster from outside. `state`: down, starting, up, stopping."""

    name: str
    state: str
    folder: str
    nodes: tuple[NodeStatus, ...]


class LocalCluster:
    """A cluster by its name; it need not be up."""

    def __init__(self, name: str = "local", shape: Optional[Shape] = None) -> None:
        self.folder = Folder.named(name)
        self.shape = shape or Shape()
        self.name = name

    def up(
        self,
        owner_pid: Optional[int] = None,
        timeout_s: float = UP_TIMEOUT_S,
        *,
        hold: bool = False,
        fresh: bool = False,
    ) -> bool:
        """Bring it up until all nodes are idle. False: it was up already, in the same shape.

        Args:
            owner_pid: the cluster ends when this process ends; None: it stays until `down`.
            timeout_s: longest wait for the nodes; of created ones, for their machines.
            hold: of a created cluster: return when the machines run, and make no node of any.
            fresh: of a created cluster: on empty disks, though there are some from the last time.

        Raises:
            UsageError: it is up in another shape, there is no process `owner_pid`, or the people
                cannot be had.
            UnavailableError: packages or namespaces are missing, or it did not come up.
        """
        if owner_pid is not None and not Path(f"/proc/{owner_pid}").exists():
            raise UsageError(f"--owner-pid {owner_pid}", "no such process", "give a living one")
        people.check(self.shape.people, self.folder.path)
        packages.ensure()
        packages.ensure_namespaces()
        self.folder.make_home()
        with self.folder.lock():
            if self._is_up():
                return False
            self.folder.remove(keep_logs=False)
            machines = self._machines(hold=hold, fresh=fresh) if self.shape.created else None
            self._start(owner_pid, timeout_s, machines)
        if machines is not None:
            from muster.cluster.created import creation  # noqa: PLC0415

            if hold:
                creation.wait_booted(self, timeout_s)
                return True
            creation.finish(self)
            if machines["disks"] is None and not fresh:
                self._save_disks(Path(machines["keep"]))
        return True

    def _machines(self, *, hold: bool, fresh: bool) -> dict[str, Any]:
        """What created machines are made of; images and packages are fetched if they are missing.

        Raises:
            UnavailableError: they cannot be had, or we are not root.
        """
        from muster.cluster.created import bundle, image  # noqa: PLC0415 - most do without

        if os.getuid() != 0:
            what = "machines with roots of their own need root"
            raise UnavailableError("muster cluster up --created", what, "sudo -E muster cluster up")
        place = image.place(CHECKOUT)
        base = image.ensure_base(place, accounting=self.shape.accounting)
        disks = image.disks(place, base, CHECKOUT, self.shape)
        from_disks = disks.is_dir() and not hold and not fresh
        return {
            "base": str(base),
            "bundle": str(bundle.make(CHECKOUT, place)),
            "disks": str(disks) if from_disks else None,
            "keep": str(disks),  # named now: a source may be edited while machines are created
            "hold": hold,
        }

    def save_disks(self) -> None:
        """Keep the disks of a created cluster: the next `up` in this shape starts from them.

        All machines are switched off for it, and on again.

        Raises:
            UsageError: it is not created by lifecycle/.
            UnavailableError: there is no room.
        """
        from muster.cluster.created import image  # noqa: PLC0415

        if not self.shape.created:
            fix = "muster cluster up --created"
            raise UsageError(f"cluster {self.name!r}", "its nodes have no disks to keep", fix)
        place = image.place(CHECKOUT)
        base = image.ensure_base(place, accounting=self.shape.accounting)
        self._save_disks(image.disks(place, base, CHECKOUT, self.shape))

    def _save_disks(self, target: Path) -> None:
        from muster.cluster.created import creation, image  # noqa: PLC0415

        creation.shut_down_controller(self)
        for name in reversed(self.shape.machines):
            self.node("kill", name)
        image.save(self.seen_from_here(self.folder.path), self.shape, target)
        self._on_all("start")
        creation.finish(self)

    def down(self, *, keep_logs: bool = False) -> bool:
        """End it, remove its files. False: it was not up; dead files are removed all the same."""
        if not self.folder.home.exists():
            return False
        check_ours(self.folder.home)
        with self.folder.lock():
            was_up = stop(self.folder, keep_logs=keep_logs)
            self.folder.remove(keep_logs=keep_logs)
        return was_up

    def exec(
        self,
        argv: Sequence[str],
        *,
        node: Optional[str] = None,
        user: Optional[str] = None,
        timeout_s: float = 60.0,
        input: Optional[str] = None,  # noqa: A002 - as process.run
        env: Optional[Mapping[str, str]] = None,
    ) -> Completed:
        """Run a command on the head, or on a node, to its end. A bad end is a result."""
        return process.run(self.exec_argv(argv, node=node, user=user), timeout_s, input, env)

    def exec_argv(
        self, argv: Sequence[str], *, node: Optional[str] = None, user: Optional[str] = None
    ) -> list[str]:
        """A command for `subprocess` that runs `argv` inside."""
        options = ["--name", self.name]
        options += ["--node", node] if node else []
        options += ["--user", user] if user else []
        code = _RUN_MODULE.format(root=str(CHECKOUT), module="cli")
        return [sys.executable, "-c", code, "exec", *options, "--", *argv]

    def enter(self, argv: Sequence[str], node: Optional[str], user: Optional[str]) -> int:
        """Become the parent of a command inside; for the command line. See `enter.run`."""
        if node is not None:
            self._up_shape().check_node(node)
        return enter.run(self.folder, enter.Order(argv, node=node, user=user))

    def node(
        self,
        verb: str,
        name: str,
        *,
        silent: bool = False,
        gpu: int = 0,
        how: str = "lost",
        text: str = "",
        path: str = "",
    ) -> None:
        """Do something to a node; returns when it is done to the machine, before Slurm knows.

        Args:
            verb: one of `VERBS`.
            name: the node.
            silent: for kill: without a last packet, so that no peer hears its connection close.
            gpu: for gpu-break: the index of the GPU.
            how: for gpu-break: one of `BREAKS`.
            text: for kernel-line: what the node's kernel says.
            path: for hide and show: a folder; hidden, it looks empty on this node alone.

        Raises:
            UsageError: no such verb, node, or GPU.
            TemporaryError: it did not work, such as thawing a node that is off.
        """
        if verb not in VERBS:
            fix = f"use one of {', '.join(VERBS)}.{did_you_mean(verb, VERBS)}"
            raise UsageError(f"node verb {verb!r}", "unknown", fix)
        shape = self._up_shape()
        shape.check_node(name)
        if shape.created and verb in NOT_ON_MACHINES:
            fix = f"muster cluster exec --node {name} -- CMD"
            raise UsageError(f"node {verb}", "not on a created cluster", fix)
        if silent and verb != "kill":
            raise UsageError(f"node {verb}", "--silent goes with kill only", "leave it out")
        request = "silent-off" if silent else VERBS[verb]
        argv = [request, name]
        if verb == "gpu-break":
            if not 0 <= gpu < shape.gpus or how not in BREAKS:
                raise UsageError(
                    f"GPU {gpu} {how}", "cannot be broken", f"0..{shape.gpus - 1}, {BREAKS}"
                )
            argv += [str(gpu), how]
        if verb == "kernel-line":
            argv += [text.replace("\n", " ")]
        if verb in ("hide", "show"):
            argv += [path]
        self._request(f"node {verb} {name}", "machine.sh", argv)

    def head(self, verb: str, node: Optional[str] = None) -> None:
        """Do something to what all nodes share: the controller, the shared disk, the name service.

        Args:
            verb: one of `HEAD_VERBS`.
            node: for name-forget and name-recall: whose name.

        Raises:
            UsageError: no such verb or node.
            TemporaryError: it did not work.
        """
        if verb not in HEAD_VERBS:
            fix = f"use one of {', '.join(HEAD_VERBS)}.{did_you_mean(verb, HEAD_VERBS)}"
            raise UsageError(f"head verb {verb!r}", "unknown", fix)
        shape = self._up_shape()
        if shape.created and not verb.startswith("disk-f"):
            fix = "muster cluster exec -- CMD"
            raise UsageError(f"head {verb}", "not on a created cluster", fix)
        if (node is not None) != verb.startswith("name-"):
            fix = "muster cluster head name-forget n2"
            raise UsageError(f"head {verb}", "a node goes with name-forget and name-recall", fix)
        argv = [verb, *([shape.check_node(node)] if node else [])]
        self._request(f"head {verb}", "head.sh", argv)

    def _request(self, what: str, script: str, argv: Sequence[str]) -> None:
        """Have one of our scripts do something to the hardware.

        Raises:
            TemporaryError: it did not work.
        """
        order = ["machine", "--name", self.name, "--", "bash"]
        order += [str(self.folder.path / "lib" / script), *argv]
        code = _RUN_MODULE.format(root=str(CHECKOUT), module="cli")
        done = process.run([sys.executable, "-c", code, *order], VERB_TIMEOUT_S)
        if not done.ok:
            raise TemporaryError(what, done.reason, "muster cluster status")

    @property
    def shared_disk(self) -> Path:
        """A small disk that all nodes mount, to be filled or made read-only: its path inside."""
        return self.folder.path / "shared"

    def seen_from_here(self, path: Path) -> Path:
        """A path inside the cluster as this machine reaches it, mounts of the cluster included.

        Raises:
            UnavailableError: the cluster is not up.
        """
        self._up_shape()
        return Path(f"/proc/{self._state()['init']}/root", path.relative_to("/"))

    def run_machine(self, argv: Sequence[str]) -> int:
        """Run one of our scripts with the rights of the hardware."""
        return enter.run(self.folder, enter.Order(argv, machine=True))

    def states(self) -> dict[str, str]:
        """Node name -> Slurm's state, such as idle, mixed, down*, drained. Empty: no answer."""
        done = self.exec(["timeout", "10", "sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=20)
        return dict(line.split() for line in done.out.splitlines()) if done.ok else {}

    def status(self) -> Status:
        """What there is, without waiting for anything."""
        state = self._state()
        if state.get("state") != "up":
            return Status(self.name, state.get("state", "down"), str(self.folder.path), ())
        done = self.exec(["timeout", "10", "sinfo", "-h", "-N", "-o", "%N|%T|%E"], timeout_s=20)
        answers = dict(line.split("|", 1) for line in done.out.splitlines() if "|" in line)
        shape = Shape.from_json(state["shape"])
        nodes = tuple(
            self._node_status(shape, n, answers.get(shape.slurm_name(n), "no answer|"))
            for n in shape.names
        )
        return Status(self.name, "up", str(self.folder.path), nodes)

    def _node_status(self, shape: Shape, name: str, answer: str) -> NodeStatus:
        at = self.folder.path / "nodes" / name
        state, _, reason = answer.partition("|")
        return NodeStatus(
            name=name,
            state=state,
            address=shape.address(name),
            powered=(at / "pid").exists(),
            boot_id=_text(at / "boot_id").strip(),
            gpus_ok=sum("|ok|0" in line for line in _text(at / "gpus").splitlines()),
            reason="" if reason == "none" else reason,
        )

    def _state(self) -> dict[str, Any]:
        """The state file, if there is a living keeper behind it."""
        link = self.folder.call_keeper()
        if link is None:
            return {}
        link.close()
        return self.folder.state()

    def _up_shape(self) -> Shape:
        state = self._state()
        if state.get("state") != "up":
            raise UnavailableError(
                f"cluster {self.name!r}", "is not up", f"muster cluster up --name {self.name}"
            )
        return Shape.from_json(state["shape"])

    def created_shape(self) -> Shape:
        """The shape it is up in; it is one that lifecycle/ created.

        Raises:
            UnavailableError: it is not up.
            UsageError: lifecycle/ has nothing to do with it.
        """
        shape = self._up_shape()
        if not shape.created:
            fix = f"muster cluster up --created --name {self.name}"
            raise UsageError(f"cluster {self.name!r}", "is not a created one", fix)
        return shape

    def _is_up(self) -> bool:
        """With the lock held: is it up as we want it? Waits for one whose caller has died."""
        if os.path.lexists(self.folder.path):
            check_ours(self.folder.path)
        state = self._state()
        if state.get("state") != "up":
            wait_end(self.folder)
            return False
        if Shape.from_json(state["shape"]) != self.shape:
            raise UsageError(
                f"cluster {self.name!r}",
                "is up in another shape",
                f"muster cluster down --name {self.name}, or choose another --name",
            )
        return True

    def _on_all(self, verb: str) -> None:
        """Do something to every machine at the same time."""
        with ThreadPoolExecutor(len(self.shape.machines)) as pool:
            list(pool.map(lambda name: self.node(verb, name), self.shape.machines))

    def _start(
        self, owner_pid: Optional[int], timeout_s: float, machines: Optional[dict[str, Any]]
    ) -> None:
        """Start the keeper, hear from it, and hand the cluster over to it."""
        order = {
            "home": str(self.folder.home),
            "name": self.name,
            "shape": self.shape.to_json(),
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "owner_pid": owner_pid,
            "timeout_s": timeout_s,
            "python": sys.executable,
            "checkout": str(CHECKOUT),
            "machines": machines,
        }
        code = _RUN_MODULE.format(root=str(CHECKOUT), module="keeper")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            starter = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(order), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            starter.wait(30)
            ours.settimeout(timeout_s + 30)
            answer = _answer(ours)
            if "error" in answer:
                wait_end(self.folder)
                raise UnavailableError(
                    f"cluster {self.name!r}",
                    f"did not come up: {answer['error']}",
                    f"read the logs in {self.folder.logs}",
                )
            ours.sendall(b"keep\n")


def _text(path: Path) -> str:
    """What a file holds; nothing while its node is being replaced."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _answer(link: socket.socket) -> dict[str, Any]:
    """The keeper's one line; an error if there is none."""
    data = b""
    try:
        while not data.endswith(b"\n"):
            chunk = link.recv(4096)
            if not chunk:
                return {"error": "its keeper died"}
            data += chunk
    except OSError as error:
        return {"error": f"its keeper is silent ({error})"}
    return dict(json.loads(data))
