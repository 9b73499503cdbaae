"""A fake node, and the door through which checks look at it without any process or file."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from healthcheck import registry
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding
from healthcheck.profile import Profile
from muster.process import RC_NOT_FOUND, Completed
from muster.site import Site

BOOT_ID = "0123abcd-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Answer:
    """What a program does when it is called; `hangs`: until it is killed."""

    out: str = ""
    err: str = ""
    rc: int = 0
    hangs: bool = False


Tool = Callable[[Sequence[str]], Answer]
"""A program: arguments in, answer out."""


@dataclass
class FakeNode:
    """What a node is made of; edit it freely.

    Attributes:
        files: path -> content; None: it is there, but cannot be read. `\\xff...` as bytes.
        links: path -> target of a symbolic link.
        tools: program -> what it answers; a program that is not here is not installed.
        unkillable: programs that hang so that no signal reaches them.
        kernel: lines of the kernel log, as (seconds since boot, text).
        user: lines that a program wrote to the kernel log, likewise.
        volumes: path -> what happens in it, as healthcheck/folders.py says; None: it hangs.
        notes: path -> what a shared folder says of a small file in it; None: it hangs.
        server_time: the time that its file servers give; None: its own.
        synchronised: what the kernel says of its clock.
        memory: what runs remember of each other, by file name.
        now: the node's clock, Unix seconds.
        uptime_s: seconds since boot.
        profile: what is expected of it.
        site: the cluster it is in.
        environ: variables that Slurm sets.
    """

    files: dict[str, Any] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    unkillable: set[str] = field(default_factory=set)
    kernel: list[tuple[float, str]] = field(default_factory=list)
    user: list[tuple[float, str]] = field(default_factory=list)
    kernel_readable: bool = True
    volumes: dict[str, Optional[dict[str, Any]]] = field(default_factory=dict)
    notes: dict[str, Optional[dict[str, Any]]] = field(default_factory=dict)
    server_time: Optional[float] = None
    synchronised: Optional[bool] = None
    memory: dict[str, str] = field(default_factory=dict)
    now: float = 1_800_000_000.0
    uptime_s: float = 90_000.0
    profile: Profile = field(default_factory=Profile)
    site: Site = field(default_factory=Site)
    environ: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)  # what add(node) of a part keeps for edits

    def say(self, program: str, out: str = "", words: str = "", **more: Any) -> None:
        """From now on `program` answers so, if its arguments contain `words`."""
        before = self.tools.get(program)
        answer = Answer(out, **more)

        def tool(arguments: Sequence[str]) -> Answer:
            if words in " ".join(arguments):
                return answer
            return before(arguments) if before else Answer(err="no such answer", rc=2)

        self.tools[program] = tool

    def change(self, program: str, edit: Callable[[Answer], Answer], words: str = "") -> None:
        """From now on the answers of `program` are edited, if its arguments contain `words`."""
        before = self.tools[program]

        def tool(arguments: Sequence[str]) -> Answer:
            answer = before(arguments)
            return edit(answer) if words in " ".join(arguments) else answer

        self.tools[program] = tool

    def remove(self, path: str) -> None:
        """No such file or folder any more."""
        self.files = {name: text for name, text in self.files.items() if not within(name, path)}
        self.links = {name: to for name, to in self.links.items() if not within(name, path)}

    def log(self, text: str, at_s: Optional[float] = None) -> None:
        """The kernel says something."""
        self.kernel.append((self.uptime_s - 60 if at_s is None else at_s, text))

    def booted(self, seconds_ago: float) -> None:
        """Its last boot was so long ago."""
        self.uptime_s = seconds_ago
        self.files["/proc/uptime"] = f"{seconds_ago:.2f} 1.00"

    def door(self, limit_s: float = 10.0) -> FakeEnv:
        """The door to this node."""
        return FakeEnv(self, limit_s)

    def facts(self, when: str = "periodic", limit_s: float = 10.0, **more: Any) -> Facts:
        """What one run knows about it."""
        door = self.door(limit_s)
        return Facts(door, self.profile, self.site, when=when, node="n3", **more)

    def check(
        self, name: Optional[str] = None, when: str = "periodic", **more: Any
    ) -> list[Finding]:
        """Findings of one run: of one check, or of all."""
        checks = [one for one in registry.discover() if name in (None, one.name)]
        return registry.run_checks(checks, self.facts(when, **more))


class FakeEnv(Env):
    """The same door as on a real node, but everything behind it is data."""

    def __init__(self, node: FakeNode, limit_s: float) -> None:
        super().__init__(Path("/nowhere"), limit_s)
        self._node = node
        self.asked: list[list[str]] = []
        self.looked_at: set[str] = set()

    def now(self) -> float:
        return self._node.now

    def run(self, argv: list[str], timeout_s: float) -> Completed:
        self.asked.append(argv)
        tool = self._node.tools.get(argv[0])
        if tool is None:
            return Completed(RC_NOT_FOUND, "", f"{argv[0]}: command not found", timed_out=False)
        answer = tool(argv[1:])
        if answer.hangs:
            self._ends -= timeout_s
            left = 4711 if argv[0] in self._node.unkillable else None
            killed = -signal.SIGKILL
            return Completed(killed, answer.out, answer.err, timed_out=True, left_pid=left)
        return Completed(answer.rc, answer.out, answer.err, timed_out=False)

    def sleep(self, seconds: float) -> None:
        self._ends -= seconds

    def variable(self, name: str) -> Optional[str]:
        return self._node.environ.get(name)

    def read_bytes(self, path: str, count: int) -> Optional[bytes]:
        self.looked_at.add(path)
        content = self._node.files.get(path)
        if content is None:
            return None
        return (content if isinstance(content, bytes) else str(content).encode())[:count]

    def entries(self, path: str) -> Optional[list[str]]:
        below = path.rstrip("/") + "/"
        known = [*self._node.files, *self._node.links]
        found = {name[len(below) :].split("/")[0] for name in known if name.startswith(below)}
        return sorted(found - {""}) if found else None

    def link(self, path: str) -> Optional[str]:
        return self._node.links.get(path)

    def records(self, path: str) -> Optional[str]:
        if not self._node.kernel_readable:
            raise PermissionError(path)
        return kmsg(self._node)

    def space(
        self,
        paths: Sequence[str],
        timeout_s: float,  # noqa: ARG002  (the real one's)
    ) -> dict[str, Optional[dict[str, Any]]]:
        return {path: self._node.volumes.get(path, {"error": errno.ENOENT}) for path in paths}

    def try_writing(
        self,
        paths: Sequence[str],
        name: str,  # noqa: ARG002
        timeout_s: float,
    ) -> dict[str, Optional[dict[str, Any]]]:
        found = self.space(paths, timeout_s)
        time = self._node.now if self._node.server_time is None else self._node.server_time
        return {
            path: {"time": time} if answer and "error" not in answer else answer
            for path, answer in found.items()
        }

    def clock_synchronised(self) -> Optional[bool]:
        return self._node.synchronised

    def read_notes(
        self,
        paths: Sequence[str],
        timeout_s: float,  # noqa: ARG002
    ) -> dict[str, Optional[dict[str, Any]]]:
        return {path: self._node.notes.get(path, {"text": ""}) for path in paths}

    def measure_disk(
        self,
        path: str,
        name: str,  # noqa: ARG002
        size_bytes: int,  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> Optional[dict[str, Any]]:
        speed: Optional[dict[str, Any]] = self._node.parts.get("disk_speed")
        return speed if path in self._node.volumes else {"error": "No such file or directory"}

    def exchange_tcp(
        self,
        order: Mapping[str, Any],  # noqa: ARG002
    ) -> Optional[dict[str, Any]]:
        said: Optional[dict[str, Any]] = self._node.parts["tcp"]
        return said

    def remembered(self, name: str) -> Optional[str]:
        return self._node.memory.get(name)

    def remember(self, name: str, text: str) -> None:
        self._node.memory[name] = text


def kmsg(node: FakeNode) -> str:
    """The kernel log in the form of /dev/kmsg."""
    boot = (0.0, 6, "Linux version 6.8.0-1021-aws (x86_64)")
    kernel = [(at, 4, text) for at, text in node.kernel]
    lines = [boot, *kernel, *((at, 12, text) for at, text in node.user)]
    return "".join(
        f"{priority},{number},{int(at * 1e6)},-;{text}\n"
        for number, (at, priority, text) in enumerate(sorted(lines, key=lambda line: line[0]))
    )


def within(name: str, path: str) -> bool:
    """Whether a path is another one, or below it."""
    return name == path or name.startswith(path.rstrip("/") + "/")
