"""Who is who: Lightning asks this instead of guessing from Slurm's variables.

Lightning's own SLURMEnvironment would count job steps as ranks and requeue the job by itself; with
this one it does neither. Restarts have one owner, the supervisor.
"""

import os

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from typing_extensions import override

import resume


class Started(ClusterEnvironment):
    """Ranks that somebody else has started. To Lightning each is a node of one device.

    So its arithmetic of nodes and devices holds for every launcher, for nodes with different
    numbers of GPUs, and where Slurm shows each task its own GPU only.
    """

    def __init__(self, run: resume.Run) -> None:
        super().__init__()
        self._run = run

    @property
    @override
    def creates_processes_externally(self) -> bool:
        """Lightning starts none."""
        return True

    @property
    @override
    def main_address(self) -> str:
        """Where rank 0 is; `connect` in train.py has been there already."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    @override
    def main_port(self) -> int:
        """Its port."""
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    @override
    def detect() -> bool:
        """Never chosen by itself."""
        return False

    @override
    def world_size(self) -> int:
        return self._run.world_size

    @override
    def set_world_size(self, size: int) -> None:
        """It is known."""

    @override
    def global_rank(self) -> int:
        return self._run.rank

    @override
    def set_global_rank(self, rank: int) -> None:
        """It is known."""

    @override
    def local_rank(self) -> int:
        return 0

    @override
    def node_rank(self) -> int:
        return self._run.rank
