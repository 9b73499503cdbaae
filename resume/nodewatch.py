"""What Slurm says about the nodes of a job, asked in the background every few seconds.

Slurm may take ten seconds to answer, or not answer at all; the supervisor must not wait for it. The
larger the job and the slower the answer, the rarer the question: one supervisor must not be felt.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Optional

from muster import slurm
from muster.errors import UnavailableError

PERIOD_S = 2.0
_NODES_A_SECOND = 100  # asked about, at most
_SHARE = 20.0  # of the time, one part is spent on asking
_FRESH_S = 5.0


@dataclass
class NodeWatch:
    """Latest answer; nodes stay as they were last seen while Slurm is silent."""

    job: str
    names: list[str]
    nodes: dict[str, slurm.Node] = field(default_factory=dict)
    allocated: Optional[set[str]] = None  # None until Slurm has answered once
    job_now: Optional[slurm.Job] = None
    answered_at: float = 0.0
    period_s: float = PERIOD_S
    ask_now: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Ask now, then in the background."""
        self.refresh()
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        while not self.stopped.is_set():
            self.ask_now.wait(self.period_s)
            self.ask_now.clear()
            self.refresh()

    def refresh(self) -> bool:
        """Ask once; silence changes nothing, and is False."""
        began_at = time.monotonic()
        try:
            nodes = slurm.show_nodes(self.names)
            job = slurm.show_job(self.job)
        except UnavailableError:
            return False
        self.nodes, self.job_now, self.allocated = nodes, job, set(job.nodes)
        self.answered_at = time.monotonic()
        took_s = self.answered_at - began_at
        self.period_s = max(PERIOD_S, len(self.names) / _NODES_A_SECOND, _SHARE * took_s)
        return True

    def stop(self) -> None:
        """Ask no more."""
        self.stopped.set()
        self.ask_now.set()

    def away(self) -> bool:
        """Whether Slurm does not answer now."""
        fresh = time.monotonic() - self.answered_at < _FRESH_S
        return not fresh and not self.refresh()

    def preempted(self) -> bool:
        """Slurm has chosen this job as a victim, and lets it run for its grace time."""
        return self.job_now is not None and self.job_now.preempted

    def address(self, name: str) -> str:
        """Where a node is reached; its name while Slurm has told nothing."""
        node = self.nodes.get(name)
        return node.address if node is not None else name

    def lost(self, name: str) -> bool:
        """Slurm has given the node up, or has taken it out of the job."""
        node = self.nodes.get(name)
        excised = bool(self.allocated) and name not in (self.allocated or set())
        return excised or (node is not None and node.lost)

    def condemned(self, name: str) -> Optional[str]:
        """Reason with which muster's own health check drained the node for its hardware.

        A drain by a person is no reason to move: draining lets running jobs finish.
        """
        node = self.nodes.get(name)
        if node is None or not node.closed:
            return None
        parts = node.reason.split(" ", 1)[0].split(":")
        if parts[0] == "muster" and len(parts) >= 3 and parts[2] == "hardware":
            return node.reason
        return None
