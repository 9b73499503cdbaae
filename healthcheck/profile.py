"""What a fit node of one kind has: a small YAML file in healthcheck/profiles.

`profile:` in the site file names one of them, or with a slash in it a file of the site. The files
are read as package data because on nodes muster is one zip file.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.config import build, read_yaml
from muster.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Profile:
    """Expectations; None: nothing is expected, facts are compared with each other."""

    gpus: Optional[int] = None
    gpus_on_pci: bool = True  # whether /sys shows the GPUs too; not for those of the local cluster
    cpus: Optional[int] = None  # that run, as Slurm counts them
    memory_gib: Optional[float] = None
    nvme_disks: Optional[int] = None  # local ones: a volume of the cloud is none
    efa_devices: Optional[int] = None
    ib_ports: Optional[int] = None  # that training uses; a node may have more
    ib_rate_gbit_s: Optional[float] = None
    ib_link_layer: str = "InfiniBand"  # Ethernet: RoCE
    allreduce_busbw_gb_s: Optional[float] = None  # all-reduce of 1 GiB among the node's GPUs
    pair_busbw_gb_s: Optional[float] = None  # of two nodes
    disk_write_mb_s: Optional[float] = None
    disk_read_mb_s: Optional[float] = None
    slurm_sizes: bool = (
        True  # whether Slurm knows the true CPUs and memory; not the local cluster's
    )


def load_profile(name: str) -> Profile:
    """The profile `name`, or the file that it names.

    Raises:
        ConfigError: no such profile, or a wrong key or value in it.
    """
    if "/" in name:
        return build(Profile, read_yaml(Path(name)), name)
    try:
        data = pkgutil.get_data("healthcheck", f"profiles/{name}.yaml")
    except OSError:
        data = None
    if data is None:
        known = names()
        raise ConfigError(
            "profile",
            f"there is no profile '{name}'.{did_you_mean(name, known)}",
            f"use one of {', '.join(known)}, or the path of a YAML file",
        )
    import yaml  # noqa: PLC0415  (read_yaml takes files; this one may be inside a zip file)

    return build(Profile, yaml.safe_load(data) or {}, f"profile {name}")


def names() -> list[str]:
    """Names of the profiles that muster brings."""
    from importlib import resources  # noqa: PLC0415  (only an error needs it, and it is slow)

    folder = resources.files("healthcheck") / "profiles"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))
