"""What one run knows about its node: every fact is read when first asked for, and once.

Who reads what stands in healthcheck/read, one module per part of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional, TypeVar

from healthcheck.env import Env
from healthcheck.profile import Profile
from muster.site import Site

T = TypeVar("T")


class Facts:
    """Facts about one node, for one run.

    Args:
        env: the door to the outside.
        profile: what a fit node has.
        site: the cluster's facts.
        when: the mode of this run.
        node: the node's name in Slurm.
        shared: folders that must be shared and writable.
        reference_time: the right Unix time, if somebody knows it.
        since: Unix time; what the kernel said before does not count. None: all since its boot does.
    """

    def __init__(
        self,
        env: Env,
        profile: Profile,
        site: Site,
        *,
        when: str,
        node: str,
        shared: Sequence[Path] = (),
        reference_time: Optional[float] = None,
        since: Optional[float] = None,
    ) -> None:
        self.env, self.profile, self.site = env, profile, site
        self.when, self.node = when, node
        self.reference_time, self.since = reference_time, since
        self._read: dict[object, Any] = {}
        self.shared_paths = list(dict.fromkeys([*map(str, shared), *site.shared_paths]))

    def once(self, reader: Callable[[Facts], T]) -> T:
        """What a reader finds out, asked for once per run however many checks want it."""
        if reader not in self._read:
            self._read[reader] = reader(self)
        value: T = self._read[reader]
        return value

    def asked(self, reader: Callable[[Facts], Any]) -> bool:
        """Whether a reader was asked in this run."""
        return reader in self._read
