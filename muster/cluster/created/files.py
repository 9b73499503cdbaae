"""The files of a created cluster's folder: the cloud's scripts, its list, what was uploaded."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
from pathlib import Path
from typing import Any, Optional

from muster.cluster.created import description
from muster.cluster.shape import Shape

SCRIPTS = {
    "lib/world.sh": ("muster.cluster", "world.sh"),
    "lib/machine.sh": ("muster.cluster", "machine.sh"),
    "bin/bmc": ("muster.cluster", "bmc.sh"),
    "bin/nvidia-smi": ("muster.cluster", "nvidia_smi.sh"),
    "hooks/reboot.sh": ("muster.cluster", "reboot.sh"),
    "lib/node.sh": ("muster.cluster.created", "node.sh"),
    "lib/services.sh": ("muster.cluster.created", "services.sh"),
}
FOLDERS = ("etc", "bin", "lib", "hooks", "log", "nodes", "shared", "dev", "config")
PRIVATE_FOLDERS = ("disks", "requests")


def write(folder: Path, shape: Shape, order: dict[str, Any]) -> None:
    """Fill an empty cluster folder.

    Args:
        folder: of the cluster.
        shape: of the cluster.
        order: `base` and `bundle` are folders; `disks` is one or None, then machines boot from it;
            `hold` says that they wait for a person instead of becoming nodes by themselves.
    """
    for name in FOLDERS:
        (folder / name).mkdir(mode=0o755)
    for name in PRIVATE_FOLDERS:
        (folder / name).mkdir(mode=0o700)
    for name in shape.machines:
        at = folder / "nodes" / name
        at.mkdir(mode=0o755)
        (at.parent / shape.slurm_name(name)).symlink_to(name)  # the cloud knows both names
        for fact, there in (("from_image", order["disks"]), ("hold", order["hold"])):
            if there:
                (at / fact).touch()
    for target, (package, name) in SCRIPTS.items():
        path = folder / target
        path.write_bytes(pkgutil.get_data(package, name) or b"")
        path.chmod(0o755)
    shutil.copytree(order["bundle"], folder / "bundle")
    (folder / "etc" / "world.env").write_text(world_env(shape, order["base"], order["disks"]))
    for path, value in (
        (folder / "config" / "resource_config.json", description.resource_config(shape)),
        (folder / "bundle" / "provisioning_parameters.json", description.provisioning()),
        (folder / "bundle" / "cluster.yaml", description.cluster_yaml(shape)),
    ):
        path.write_text(json.dumps(value, indent=2) + "\n")
    os.mkfifo(folder / "bmc", mode=0o600)


def world_env(shape: Shape, base: str, disks: Optional[str]) -> str:
    """What the bash side needs to know, as bash; the first machine is the head."""
    return "\n".join(
        [
            f"NODES=({' '.join(shape.machines)})",
            "OUT_OF_SERVICE=()",
            "AS=()",
            f"SUBNET={shape.address('n1').rpartition('.')[0]}",
            f"FIRST_ADDRESS={shape.address('n1').rpartition('.')[2]}",
            f"GPUS={shape.gpus}",
            f"BOOT_S={shape.boot_s:g}",
            "CREATED=yes",
            f"BASE={base}",
            f"IMAGE={disks or ''}",
            "",
        ]
    )
