"""The nodes that Slurm gave to the job: which of them are fit to train on now.

A node that was lost or unfit once is not used again in this allocation: it may come back to Slurm,
but what runs on it then is nothing that this supervisor started.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional, Protocol

from muster.errors import CreateError
from muster.site import Site
from muster.slurm import Node
from resume.fleet import Fleet
from resume.nodewatch import NodeWatch
from resume.rescue import answers

if TYPE_CHECKING:
    from healthcheck.suspect import Suspect

_REVIVE_S = 3.0
_SLURM_WAIT_S = 3.0
_REFUSALS = 3  # of srun, before the allocation is given back
_FRESH_S = 10.0
SHARED_BY = 3  # so many nodes with the same finding have it from outside
_SPARE_WAIT_S = 3.0  # a spare that is slow to answer must not hold up a restart
_SUSPICIOUS_S = 1.2  # silence, where an answer is waited for; guards speak twice a second


class Waiter(Protocol):
    """Who waits without falling silent: the supervisor."""

    host: str

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Tick until the condition holds; False when it does not in time."""

    def say(self, text: str) -> None:
        """One line for the person who reads the job's output."""

    def note(self, event: str, **facts: object) -> None:
        """Write an event into the journal."""

    def suspects(self) -> dict[str, tuple[str, str]]:
        """{node: (boot id, why)} of nodes that were put out in this or an earlier allocation."""


@dataclass
class Allocation:
    """Nodes of one allocation and what is known against them."""

    site: Site
    fleet: Fleet
    node_watch: NodeWatch
    run_dir: Path
    waiter: Waiter
    bad: dict[str, str] = field(default_factory=dict)  # node -> reason
    refused: str = ""  # why srun starts no step here at all: then no node is to blame
    shared_fault: str = ""  # what so many nodes fail the gate with that none of them is to blame
    passed_at: float = -_FRESH_S  # when nodes were last asked after a failure, or ahead of one
    _gated_at: float = -_FRESH_S  # when the last gate was passed
    _revived_at: float = 0.0

    def usable(self) -> list[str]:
        """Nodes that nothing is known against, in Slurm's order."""
        return [name for name in self.node_watch.names if name not in self.bad]

    def answers(self, name: str) -> bool:
        """Whether the node accepts a connection on its slurmd port."""
        node = self.node_watch.nodes.get(name)
        return answers(node if node is not None else Node(name, frozenset(), name))

    def without_answer(self, names: Sequence[str]) -> list[str]:
        """Those that are silent, and whose slurmd does not answer either: nobody waits for them."""
        host = self.waiter.host
        silent = [n for n in names if n != host and self.fleet.silent_s(n) > _SUSPICIOUS_S]
        if not silent:
            return []
        with ThreadPoolExecutor(min(8, len(silent))) as pool:
            return [
                name for name, there in zip(silent, pool.map(self.answers, silent)) if not there
            ]

    def condemn(self, name: str, reason: str) -> None:
        """Never use this node again in this allocation, nor in a later one before it has booted."""
        if name in self.bad:
            return
        self.bad[name] = reason
        self.waiter.say(f"node {name} is out: {reason}")
        boot = self.fleet.boots.get(name)
        if boot and name not in self.waiter.suspects():
            self.waiter.note("suspect", node=name, boot=boot, why=reason)

    def _recognise(self, present: Iterable[str]) -> None:
        """Put out again what was put out before a requeue; welcome what has booted since."""
        for name in present:
            boot, why = self.waiter.suspects().get(name, ("", ""))
            if not why:
                continue
            if boot == self.fleet.boots.get(name):
                self.condemn(name, f"suspect until it boots: {why}")
            elif name not in self.bad:
                self.waiter.note("suspect_cleared", node=name, why="it has booted since")

    def slurm_knows_the_lost(self) -> bool:
        """Whether Slurm, too, has given up every node that does not answer."""
        silent = [name for name in self.bad if self.fleet.silent_s(name) > self.site.lost_after_s]
        return all(self.node_watch.lost(name) or self.answers(name) for name in silent)

    def bad_text(self) -> str:
        """All that is known against nodes, in one line."""
        return "; ".join(f"{name}: {why}" for name, why in self.bad.items()) or "nothing known"

    def revive_guards(self, attempt: int, beat_dir: Path) -> None:
        """New guards beside a running attempt, on the nodes that answer.

        srun gives up all guards when the connection to one of them breaks, so this is what follows
        the loss of a node; silence is counted anew, or every node would look lost.
        """
        now = time.monotonic()
        if now - self._revived_at < _REVIVE_S:
            return
        self._revived_at = now
        with ThreadPoolExecutor(8) as pool:
            names = self.usable()
            present = [n for n, there in zip(names, pool.map(self.answers, names)) if there]
        if present:
            self.fleet.start(present)
            self.fleet.prepare(attempt, beat_dir, fresh=False)

    def start_guards(self) -> None:
        """Guards on all usable nodes; a node without an answer is out, unless none has one.

        Raises:
            CreateError: no other node sees RUN_DIR.
        """
        self._start_answering()
        views = self.fleet.nodes
        self.waiter.wait_for(
            lambda: all(view.hello for view in views.values()) or not self.fleet.running(),
            self.site.gate_timeout_s,
        )
        if not self.fleet.running() and not any(view.hello for view in views.values()):
            self.refused = self.fleet.last_words() or "srun ended at once"
            return
        for name in [name for name, view in views.items() if not view.hello]:
            self.condemn(name, "its guard does not answer")
        present = [name for name, view in views.items() if view.hello]
        blind = [name for name in present if not views[name].shared]
        if blind and len(present) - len(blind) <= 1:
            raise CreateError(
                str(self.run_dir),
                f"RUN_DIR is not shared: node {blind[0]} does not see it",
                "give --run-dir on a file system that all nodes mount",
            )
        for name in blind:
            self.condemn(name, f"does not see {self.run_dir}")
        self._recognise(present)

    def _start_answering(self) -> None:
        """Start the guards; srun cannot while the controller is away, and no node is to blame."""
        names = self.usable()
        self.fleet.start(names)
        told = False
        while not self._guards_came() and self.node_watch.away():
            if not told:
                self.waiter.say("Slurm does not answer; waiting for it, ranks are not touched")
            told = True
            self.waiter.wait_for(lambda: False, _SLURM_WAIT_S)
            self.fleet.drop()
            self.fleet.start(names)

    def _guards_came(self) -> bool:
        """Whether srun holds the guards still once the first has spoken."""
        views = self.fleet.nodes
        self.waiter.wait_for(
            lambda: any(view.hello for view in views.values()) or not self.fleet.running(),
            self.site.gate_timeout_s,
        )
        return any(view.hello for view in views.values())

    def gate(self, wanted: int) -> list[str]:
        """Usable nodes that pass the health gate now, in Slurm's order.

        srun gives up all guards when it cannot reach one node, so the guards are started again
        without the nodes that did not answer, until they stay. One that starts nowhere is tried
        again without the nodes that Slurm has given up since.
        """
        self.shared_fault, refusals = "", 0
        for _ in range(len(self.node_watch.names) + _REFUSALS):
            self._drop_known_bad()
            if len(self._fresh()) >= wanted and self.fleet.running():
                return self._fresh()
            self.refused = ""
            if not self.fleet.running():
                self.start_guards()
            if self.refused:
                refusals += 1
                if refusals >= _REFUSALS:
                    return []
                self.waiter.wait_for(self.node_watch.refresh, _SLURM_WAIT_S)
                continue
            if self._checked(wanted):
                break
        views = self.fleet.nodes
        return [name for name in self.usable() if name in views and views[name].gate]

    def _fresh(self) -> list[str]:
        """Usable nodes that have passed a check just now, after a failure that had no cause yet."""
        if time.monotonic() - self.passed_at > _FRESH_S:
            return []
        views = self.fleet.nodes
        return [name for name in self.usable() if name in views and views[name].gate]

    def ask_suspects(self, names: Sequence[str], since: float) -> Optional[Suspect]:
        """Who is to blame for a failure that nothing explains; None: nobody could be asked.

        Args:
            names: nodes of the attempt.
            since: when it began, Unix time: what the kernel said before does not count.
        """
        if not self.fleet.running():
            return None
        from healthcheck.suspect import judge, read_findings  # noqa: PLC0415  (failures only)

        views = self.fleet.nodes
        self.fleet.check("suspect", since)
        self.waiter.wait_for(
            lambda: not self._awaited(names) or not self.fleet.running(), self.site.gate_timeout_s
        )
        if not self.fleet.running():
            return None
        reports = {
            name: read_findings("\n".join(map(json.dumps, [*view.findings, {"fit": view.gate}])))
            for name in names
            if (view := views.get(name)) is not None
        }
        self.passed_at = time.monotonic()
        return judge(reports)

    def nothing_failed(self) -> None:
        """A command is done, so what nodes answered before it counts for the next, if it is new."""
        self.passed_at = max(self.passed_at, self._gated_at)

    def check_ahead(self) -> None:
        """Ask all guards for the gate's check while it is not yet sure that it will be needed.

        Their answers count for the next gate, if it comes at once.
        """
        if time.monotonic() - self.passed_at > _FRESH_S and self.fleet.running():
            self.fleet.check()
            self.passed_at = time.monotonic()

    def _checked(self, wanted: int) -> bool:
        """Run the gate on all usable nodes; False when the guards went away meanwhile."""
        names, views = self.usable(), self.fleet.nodes
        self.fleet.check()
        asked_at = time.monotonic()

        def answered() -> bool:
            num_fit = sum(views[name].gate is True for name in names)
            waited_s = time.monotonic() - asked_at
            enough = num_fit >= wanted and waited_s > _SPARE_WAIT_S
            return enough or not self._awaited(names) or not self.fleet.running()

        self.waiter.wait_for(answered, self.site.gate_timeout_s)
        if not self.fleet.running():
            return not names
        self._gated_at = asked_at
        failed = {name: views[name].gate_why for name in names if views[name].gate is False}
        self.shared_fault = shared_fault(failed)
        dead = self.without_answer([name for name in names if views[name].gate is None])
        for name in names:
            view = views[name]
            if view.gate is False and not self.shared_fault:
                self.condemn(name, "; ".join(view.gate_why) or "the health check failed")
            elif name in dead:
                self.condemn(name, "does not respond")
        return True

    def _awaited(self, names: Sequence[str]) -> list[str]:
        """Nodes that owe the answer to a check, and live."""
        views = self.fleet.nodes
        missing = [name for name in names if name in views and views[name].gate is None]
        dead = self.without_answer(missing)
        return [name for name in missing if name not in dead]

    def _drop_known_bad(self) -> None:
        for name in self.usable():
            reason = self.node_watch.condemned(name)
            if self.node_watch.lost(name):
                self.condemn(name, "lost, says Slurm")
            elif reason is not None:
                self.condemn(name, reason)


def shared_fault(failed: Mapping[str, Sequence[str]]) -> str:
    """What three nodes or more fail the gate with, in words; empty: each has its own fault.

    Args:
        failed: reasons by node, each "CHECK: DETAIL".
    """
    nodes_of: dict[str, list[str]] = {}
    for name, reasons in failed.items():
        for check in {reason.partition(":")[0] for reason in reasons}:
            nodes_of.setdefault(check, []).append(name)
    for check, names in nodes_of.items():
        if len(names) >= SHARED_BY:
            said = next(reason for reason in failed[names[0]] if reason.startswith(check))
            return f"{len(names)} nodes fail alike: {said}"
    return ""
