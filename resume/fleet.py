"""The supervisor's side of the guards: one srun, one line a node and half second, one thread.

What a node last said, and how long it has been silent, is all that is kept; judging is for others.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

from muster import slurm
from resume.durable import last_line

if TYPE_CHECKING:
    from resume.sight import Wanted


@dataclass
class NodeView:
    """Last words of one node's guard. Written by the reader thread, read by the supervisor."""

    hello: bool = False
    shared: bool = False
    boot: str = ""
    heard_at: float = 0.0  # monotonic; at first the time when its guard was started
    ready: Optional[int] = None  # attempt whose beat folder exists
    reported: bool = False  # beats, since the guard was started or got ready
    unseen: str = ""  # what of the checkpoint this node does not see; empty: all is there
    local: bool = False  # its ranks load from its own disk
    port: int = 0
    gate: Optional[bool] = None  # None: no answer yet
    gate_why: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)  # of that check
    terminated: bool = False  # Slurm has sent SIGTERM to the steps of the job
    kills: int = 0  # for want of memory, during this attempt
    clean: Optional[int] = None  # attempt of which no rank is left
    beats: dict[int, tuple[str, Optional[int], float]] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)  # of a report in several lines


class Fleet:
    """The guards on the nodes of one allocation."""

    def __init__(self, guard_argv: Sequence[str], log: Path) -> None:
        self._guard_argv = list(guard_argv)
        self._log = log
        self._srun: Optional[subprocess.Popen[bytes]] = None
        self._exits_seen: list[int] = []
        self.nodes: dict[str, NodeView] = {}
        self.boots: dict[str, str] = {}  # boot id of every node that was ever heard

    def start(self, nodes: Sequence[str]) -> None:
        """Start a guard on every node; their hellos come in later."""
        self.nodes = {name: NodeView(heard_at=time.monotonic()) for name in nodes}
        self._exits_seen = []
        argv = guard_srun(nodes, self._guard_argv)
        if self._srun is not None and self._srun.stdin is not None:
            with contextlib.suppress(OSError):
                self._srun.stdin.close()  # of one that has ended
        with self._log_file() as log:
            self._srun = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # signals for the batch shell are not for the guards
                env=step_environment(),
            )
        if self._srun.stdin is not None:
            os.set_blocking(self._srun.stdin.fileno(), False)
        threading.Thread(target=self._read, args=(self._srun,), daemon=True).start()

    def _log_file(self) -> BinaryIO:
        """guards.log; a full disk must not keep the guards from starting."""
        try:
            return self._log.open("ab")
        except OSError:
            return Path(os.devnull).open("ab")

    def last_words(self) -> str:
        """What srun said last, in guards.log."""
        return last_line(self._log, lambda line: line.startswith("srun: "))

    def _read(self, srun: subprocess.Popen[bytes]) -> None:
        with srun.stdout or contextlib.nullcontext(()) as lines:
            for line in lines:
                start = line.find(b"{")
                with contextlib.suppress(Exception):  # half a line of a node that died in it
                    value = json.loads(line[start:]) if start >= 0 else None
                    if isinstance(value, dict) and value.get("n") in self.nodes:
                        self._note(self.nodes[value["n"]], value)

    def _note(self, node: NodeView, said: dict[str, Any]) -> None:
        node.heard_at = time.monotonic()
        if "hello" in said:
            node.hello, node.shared, node.boot = True, bool(said["shared"]), str(said["boot"])
            self.boots[str(said["n"])] = node.boot
        if "term" in said:
            node.terminated = True
        if "f" in said and isinstance(said["f"], dict):
            node.findings.append(said["f"])
        if "ready" in said:
            node.beats, node.exits, node.clean, node.reported = {}, {}, None, False
            node.parts, node.kills = [], 0
            node.local = bool(said.get("local"))
            node.unseen = "; ".join(str(why) for why in said.get("why", []))
            node.port, node.ready = int(said["port"]), int(said["ready"])
        if "gate" in said:
            node.gate_why, node.gate = [str(w) for w in said["why"]], bool(said["fit"])
        if "clean" in said:
            node.clean = int(said["clean"])
        if "r" in said:
            node.parts.append(said)
            if "more" not in said:
                self._note_report(node)

    def _note_report(self, node: NodeView) -> None:
        parts, node.parts = node.parts, []
        beats = {int(r): b for part in parts for r, b in part["r"].items()}
        exits = {int(r): int(code) for part in parts for r, code in part["x"].items()}
        node.reported = True
        node.kills = int(parts[-1].get("o", 0))
        node.beats = {rank: (b[0], b[1], float(b[2])) for rank, b in beats.items()}
        self._exits_seen += [r for r in exits if r not in self._exits_seen]
        node.exits = exits

    def order(self, **order: Any) -> bool:
        """Send one order to all guards; False when there is nobody to send to."""
        if self._srun is None or self._srun.stdin is None:
            return False
        try:  # one write, whole or refused: an srun that no longer reads must not hold us
            os.write(self._srun.stdin.fileno(), json.dumps(order).encode() + b"\n")
        except OSError:
            return False
        return True

    def running(self) -> bool:
        """Whether srun still holds the guards."""
        return self._srun is not None and self._srun.poll() is None

    def drop(self) -> None:
        """Give these guards up, because one is mute; new ones are started beside the ranks."""
        srun = self._srun
        if srun is None or srun.poll() is not None:
            return
        self.order(do="bye")
        if srun.stdin is not None:
            with contextlib.suppress(OSError):
                srun.stdin.close()
        try:
            srun.wait(1)
        except subprocess.TimeoutExpired:
            srun.kill()
            srun.wait()

    def prepare(
        self, attempt: int, beat_dir: Path, *, fresh: bool, see: Optional[Wanted] = None
    ) -> None:
        """Ask for the beat folder of an attempt and a free port on every node.

        Args:
            attempt: its number.
            beat_dir: the same path on every node, private to each.
            fresh: empty it; False when the ranks already run and only the guards are new.
            see: a checkpoint that a node must see before it is ready.
        """
        if fresh:
            self._exits_seen = []
        more = {} if see is None else {"see": see.as_order()}
        self.order(do="prepare", attempt=attempt, beat_dir=str(beat_dir), fresh=fresh, **more)

    def check(self, when: str = "gate", since: Optional[float] = None) -> None:
        """Ask every node to run a health check; answers come in `NodeView.gate`.

        Args:
            when: which set of checks.
            since: kernel lines before this Unix time do not count.
        """
        for node in self.nodes.values():
            node.gate, node.gate_why, node.findings = None, [], []
        more = {} if since is None else {"since": since}
        self.order(do="check", when=when, time=time.time(), **more)

    def silent_s(self, name: str) -> float:
        """Seconds since a node was last heard; without end where there is no guard."""
        view = self.nodes.get(name)
        return time.monotonic() - view.heard_at if view is not None else math.inf

    def beats(self, names: Iterable[str]) -> dict[int, tuple[str, Optional[int], float, str]]:
        """{rank: (phase, step, age in s, node)} of the given nodes, age as of now."""
        return {
            rank: (phase, step, age + self.silent_s(name), name)
            for name in names
            if name in self.nodes
            for rank, (phase, step, age) in self.nodes[name].beats.items()
        }

    def exits(self, names: Iterable[str]) -> dict[int, int]:
        """{rank: exit code} of the given nodes, in the order in which they were reported."""
        views = [self.nodes[name] for name in names if name in self.nodes]
        merged = {rank: code for view in views for rank, code in view.exits.items()}
        return {rank: merged[rank] for rank in self._exits_seen if rank in merged}

    def leave(self) -> None:
        """Send the guards home: this end is on purpose."""
        self.order(do="bye", over=True)
        srun, self._srun = self._srun, None
        if srun is None:
            return
        if srun.stdin is not None:
            with contextlib.suppress(OSError):
                srun.stdin.close()
        try:
            srun.wait(3)
        except subprocess.TimeoutExpired:
            srun.kill()  # a lost node keeps srun waiting; Slurm ends that step itself
            srun.wait()


def guard_srun(nodes: Sequence[str], guard_argv: Sequence[str]) -> list[str]:
    """The srun line of the guards: beside everything else, whole lines, deaf to lost nodes.

    The end of one guard is not the end of the others, whatever KillOnBadExit and WaitTime say.
    """
    count = str(len(nodes))
    return [
        *("srun", "--overlap", "--no-kill", "--quiet", "--job-name=guard"),
        *("--kill-on-bad-exit=0", "--wait=0"),
        *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        f"--nodelist={','.join(nodes)}",
        *("--label", "--input=all", "--cpus-per-task=1"),
        *guard_argv,
    ]


def own_argv() -> list[str]:
    """How to start this program on another node; `step_environment` says where it is found."""
    return [sys.executable, "-m", "muster"]


def step_environment() -> dict[str, str]:
    """Our environment, made fit for a step: with our own place, without the batch script's shape.

    SLURM_NTASKS of the allocation leaks into steps on fewer nodes, and so do its siblings. With
    defaults for Pyxis even a guard would start in a container, where there is no muster. Our own
    place is a folder or muster.pyz; it lets guards start and recipes import `resume`.
    """
    bending = {
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"),
        "SLURM_EXPORT_ENV",  # of `sbatch --export=NONE`: the contract's variables would not pass
    }
    own = str(Path(__file__).resolve().parents[1])
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != own]
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in bending and not key.startswith(slurm.PYXIS)
    }
    return {**kept, "PYTHONPATH": os.pathsep.join([own, *paths])}
