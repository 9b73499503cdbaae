"""What a fit node of one kind has: a small YAML file in healthcheck/profiles.

`profile:` in the site file names one of them, or with a slash in it a file of the site. The files
are read as package data because on nodes muster is one zip file. Machines of a cloud come in sizes:
keys under `sizes:` come on top of the others, and `auto` takes a profile only in a size that it
lists. CPUs are in no profile: whether hyperthreads are on is chosen per cluster, and Slurm knows.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from muster.config import build, read_yaml
from muster.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from healthcheck.env import Env

_PRODUCT = "/sys/devices/virtual/dmi/id/product_name"


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
    pair_tcp_gbit_s: Optional[float] = None  # TCP between two nodes
    disk_write_mb_s: Optional[float] = None
    disk_read_mb_s: Optional[float] = None
    slurm_sizes: bool = (
        True  # whether Slurm knows the true CPUs and memory; not the local cluster's
    )
    pcie_width: Optional[int] = None  # lanes of a GPU
    pcie_gen: Optional[int] = None  # generation of its PCIe link
    nvlinks: Optional[int] = None  # per GPU
    nvswitches: Optional[int] = None  # on the PCI bus
    mig: Optional[bool] = None
    ecc: Optional[bool] = None  # false: it may be off
    drivers: list[str] = field(default_factory=list)  # versions; empty: any
    vbios: list[str] = field(default_factory=list)
    neuron_devices: Optional[int] = None


def load_profile(name: str, env: Optional[Env] = None) -> Profile:
    """The profile `name`, or the file that it names; `auto`: that of the machine, if one fits.

    Args:
        name: of a profile, of a profile and a size (`g6.12xlarge`), or a path with a slash.
        env: to look at the machine; None: `auto` expects nothing.

    Raises:
        ConfigError: no such profile, or a wrong key or value in it.
    """
    if "/" in name:
        return _build(read_yaml(Path(name)), None, name)
    if name == "auto":
        return (env and _of_machine(env)) or Profile()
    family, _, size = name.partition(".")
    values = _values(family)
    if values is None or (size and size not in values.get("sizes", {})):
        known = names()
        raise ConfigError(
            "profile",
            f"there is no profile '{name}'.{did_you_mean(name, known)}",
            f"use one of {', '.join(known)}, or the path of a YAML file",
        )
    return _build(values, size or None, f"profile {name}")


def machine_type(env: Env) -> Optional[str]:
    """What the maker calls this machine, such as p5.48xlarge; None: it does not say.

    From the firmware's tables: no network is asked, which could hang.
    """
    found = env.read(_PRODUCT)
    return found if found and re.fullmatch(r"[\w.-]{1,64}", found) else None


def _of_machine(env: Env) -> Optional[Profile]:
    """The profile of a known machine in a known size, less what depends on how it was ordered."""
    kind = machine_type(env)
    family, _, size = (kind or "").partition(".")
    values = _values(family) if size else None
    if values is None or size not in values.get("sizes", {}):
        return None
    return replace(_build(values, size, f"profile {kind}"), efa_devices=None)


def _values(name: str) -> Optional[dict[str, Any]]:
    """What a profile's file says; None: there is none."""
    try:
        data = pkgutil.get_data("healthcheck", f"profiles/{name}.yaml")
    except OSError:
        data = None
    if data is None:
        return None
    import yaml  # noqa: PLC0415  (read_yaml takes files; this one may be inside a zip file)

    return yaml.safe_load(data) or {}


def _build(values: dict[str, Any], size: Optional[str], where: str) -> Profile:
    """The expectations, with those of one size on top."""
    common = {key: value for key, value in values.items() if key != "sizes"}
    of_size = values["sizes"][size] if size else {}
    return build(Profile, {**common, **of_size}, where)


def names() -> list[str]:
    """Names of the profiles that muster brings."""
    from importlib import resources  # noqa: PLC0415  (only an error needs it, and it is slow)

    folder = resources.files("healthcheck") / "profiles"
    found = (f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))
    return sorted(["auto", *found])
