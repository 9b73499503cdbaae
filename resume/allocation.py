"""The nodes that Slurm gave to the job: which of them are fit to train on now.

A node that was lost or unfit once is not used again in this allocation: it may come back to Slurm,
but what runs on it then is nothing that this supervisor started.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Protocol

from muster.errors import CreateError
from muster.site import Site
from resume.fleet import Fleet
from resume.nodewatch import NodeWatch
from resume.rescue import answers

_REVIVE_S = 3.0
_SPARE_WAIT_S = 3.0  # a spare that is slow to answer must not hold up a restart


class Waiter(Protocol):
    """Who waits without falling silent: the supervisor."""

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Tick until the condition holds; False when it does not in time."""

    def say(self, text: str) -> None:
        """One line for the person who reads the job's output."""


@dataclass
class Allocation:
    """Nodes of one allocation and what is known against them."""

    site: Site
    fleet: Fleet
    node_watch: NodeWatch
    run_dir: Path
    waiter: Waiter
    bad: dict[str, str] = field(default_factory=dict)  # node -> reason
    _revived_at: float = 0.0

    def usable(self) -> list[str]:
        """Nodes that nothing is known against, in Slurm's order."""
        return [name for name in self.node_watch.names if name not in self.bad]

    def answers(self, name: str) -> bool:
        """Whether the node accepts a connection on its slurmd port."""
        node = self.node_watch.nodes.get(name)
        return node is not None and answers(node)

    def condemn(self, name: str, reason: str) -> None:
        """Never use this node again in this allocation."""
        if name not in self.bad:
            self.bad[name] = reason
            self.waiter.say(f"node {name} is out: {reason}")

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
        """Guards on all usable nodes; a node without an answer is out.

        Raises:
            CreateError: no other node sees RUN_DIR.
        """
        self.fleet.start(self.usable())
        views = self.fleet.nodes
        self.waiter.wait_for(
            lambda: all(view.hello for view in views.values()) or not self.fleet.running(),
            self.site.gate_timeout_s,
        )
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

    def gate(self, wanted: int) -> list[str]:
        """Usable nodes that pass the health gate now, in Slurm's order.

        srun gives up all guards when it cannot reach one node, so the guards are started again
        without the nodes that did not answer, until they stay.
        """
        for _ in range(len(self.node_watch.names) + 1):
            self._drop_known_bad()
            if not self.fleet.running():
                self.start_guards()
            if self._checked(wanted):
                break
        views = self.fleet.nodes
        return [name for name in self.usable() if name in views and views[name].gate]

    def _checked(self, wanted: int) -> bool:
        """Run the gate on all usable nodes; False when the guards went away meanwhile."""
        names, views = self.usable(), self.fleet.nodes
        self.fleet.check()
        asked_at = time.monotonic()

        def answered() -> bool:
            missing = [name for name in names if views[name].gate is None]
            num_fit = sum(views[name].gate is True for name in names)
            waited_s = time.monotonic() - asked_at
            enough = num_fit >= wanted and waited_s > _SPARE_WAIT_S
            return not missing or enough or not self.fleet.running()

        self.waiter.wait_for(answered, self.site.gate_timeout_s)
        if not self.fleet.running():
            return not names
        for name in names:
            view = views[name]
            if view.gate is False:
                self.condemn(name, "; ".join(view.gate_why) or "the health check failed")
            elif view.gate is None and self.fleet.silent_s(name) > self.site.lost_after_s:
                self.condemn(name, "does not respond")
        return True

    def _drop_known_bad(self) -> None:
        for name in self.usable():
            reason = self.node_watch.condemned(name)
            if self.node_watch.lost(name):
                self.condemn(name, "lost, says Slurm")
            elif reason is not None:
                self.condemn(name, reason)
