"""What one run knows about its node: every fact is read when first asked for, and once.

Parsing is in plain functions so that recorded output can be given to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Optional, TypeVar

from healthcheck.env import Env
from healthcheck.profile import Profile
from healthcheck.read.slurm_node import slurm_node
from muster.process import Completed
from muster.site import Site

T = TypeVar("T")
QUERY = (
    "nvidia-smi",
    "--query-gpu=index,uuid,serial,pci.bus_id,ecc.errors.uncorrected.volatile.total",
    "--format=csv,noheader,nounits",
)
_SMI_TRY_S = {"gate": 4.0, "prolog": 4.0, "epilog": 12.0}
_SMI_TRY_OTHER_S = 15.0
_GRES = re.compile(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)")


@dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi; `ecc` is the count as printed, such as '0' or '[N/A]'."""

    index: str
    uuid: str
    serial: str
    bus: str
    ecc: str

    @property
    def name(self) -> str:
        """The serial number, which follows a GPU into another node; else its UUID."""
        return self.serial if re.fullmatch(r"\d{6,}", self.serial) else self.uuid


def parse_gpus(text: str) -> list[Gpu]:
    """Rows that name a GPU; error lines, which also stand on stdout, are none."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and re.fullmatch(r"GPU-[0-9a-fA-F-]{8,}", cells[1]):
            rows.append(Gpu(*cells))
    return rows


def parse_gres(gres: str) -> int:
    """GPUs in a Gres field such as `gpu:h100:8(S:0-1),shard:16`."""
    return sum(int(count) for count in _GRES.findall(gres))


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

    @cached_property
    def smi(self) -> Completed:
        """The one query of nvidia-smi; asked a second time when the first did not come back."""
        limit_s = _SMI_TRY_S.get(self.when, _SMI_TRY_OTHER_S)
        first = self.env.run(list(QUERY), limit_s)
        return self.env.run(list(QUERY), limit_s) if first.timed_out else first

    @cached_property
    def gpus(self) -> list[Gpu]:
        """The GPUs that nvidia-smi shows."""
        return parse_gpus(self.smi.out)

    @cached_property
    def pci_gpus(self) -> Optional[int]:
        """NVIDIA GPUs on the PCI bus; None when /sys cannot say."""
        if not self.profile.gpus_on_pci:
            return None
        base = "/sys/bus/pci/devices"
        found = 0
        for device in self.env.names(base):
            if self.env.read(f"{base}/{device}/vendor") == "0x10de":
                kind = self.env.read(f"{base}/{device}/class") or ""
                found += kind.startswith(("0x0300", "0x0302"))
        return found or None

    @cached_property
    def gres_gpus(self) -> Optional[int]:
        """GPUs that Slurm gives this node; None: unknown."""
        return parse_gres((self.once(slurm_node) or {}).get("Gres", "")) or None

    @cached_property
    def expected_gpus(self) -> Optional[int]:
        """GPUs a fit node shows; None: nobody knows, which is not the same as 0."""
        if self.profile.gpus is not None:
            return self.profile.gpus
        known = [count for count in (self.gres_gpus, self.pci_gpus) if count is not None]
        return max(known) if known else None
