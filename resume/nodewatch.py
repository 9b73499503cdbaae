"""What Slurm says about the nodes of a job, asked in the background every two seconds.

Slurm may take ten seconds to answer, or not answer at all; the supervisor must not wait for it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Optional

from muster import slurm
from muster.errors import UnavailableError

PERIOD_S = 2.0


@dataclass
class NodeWatch:
    """Latest answer; nodes stay as they were last seen while Slurm is silent."""

    job: str
    names: list[str]
    nodes: dict[str, slurm.Node] = field(default_factory=dict)
    allocated: Optional[set[str]] = None  # None until Slurm has answered once
    answered_at: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Ask now, then in the background."""
        self.refresh()
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        while not self.stopped.wait(PERIOD_S):
            self.refresh()

    def refresh(self) -> None:
        """Ask once; silence changes nothing."""
        try:
            nodes = slurm.show_nodes(self.names)
            allocated = set(slurm.show_job(self.job).nodes)
        except UnavailableError:
            return
        self.nodes, self.allocated, self.answered_at = nodes, allocated, time.monotonic()

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
