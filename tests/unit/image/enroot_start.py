"""What Enroot does with environ.d and hooks.d before a container starts, on a node of files.

In the order of Enroot 3.4 to 4.1: the image's variables, the files environ.d/*.env, those that
--container-env names; then the hooks, with nothing but bash, their environment and the node's /sys
and /proc. A hook that fails ends the start. The last line of a name counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ENROOT = Path(__file__).resolve().parents[3] / "containers" / "enroot"
ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0101A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0
ens32\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
ens32\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
"""


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device, as /sys/class/infiniband shows it."""

    device: str
    driver: str
    layer: str = "InfiniBand"
    state: str = "4: ACTIVE"
    number: int = 1


@dataclass(frozen=True)
class Node:
    """A node of files: what its /sys and /proc say, and its /etc/enroot."""

    root: Path
    ports: tuple[Port, ...] = ()
    pci: tuple[tuple[str, str], ...] = ()  # vendor, class
    routes: str = ROUTES
    site: Mapping[str, str] = field(default_factory=dict)  # further files below environ.d

    def write(self) -> Node:
        """Make the files."""
        for port in self.ports:
            device = self.root / "sys/class/infiniband" / port.device
            here = device / "ports" / str(port.number)
            here.mkdir(parents=True)
            (here / "state").write_text(f"{port.state}\n")
            (here / "link_layer").write_text(f"{port.layer}\n")
            (device / "device").mkdir(exist_ok=True)
            if not (device / "device/driver").is_symlink():
                target = f"../../../bus/pci/drivers/{port.driver}"
                (device / "device/driver").symlink_to(target)
        for number, (vendor, kind) in enumerate(self.pci):
            device = self.root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"{vendor}\n")
            (device / "class").write_text(f"{kind}\n")
        (self.root / "proc/net").mkdir(parents=True)
        (self.root / "proc/net/route").write_text(self.routes)
        shutil.copytree(ENROOT, self.root / "etc/enroot")
        for name, text in self.site.items():
            (self.root / "etc/enroot/environ.d" / name).write_text(text)
        return self

    def call(self, hook: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Execute one hook as Enroot does; it must be a program, and gets no other variable."""
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MUSTER_NODE_ROOT": str(self.root),
            "ENROOT_SYSCONF_PATH": str(self.root / "etc/enroot"), **variables,
        }  # fmt: skip
        return subprocess.run(
            [str(hook), *words], env=env, cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def start(self, image: str = "", wins: str = "") -> dict[str, str]:
        """The container's variables.

        Args:
            image: its /etc/environment.
            wins: NAME=value lines of --container-env.
        """
        rootfs, environ = self.root / "rootfs", self.root / "environment"
        (rootfs / "etc").mkdir(parents=True, exist_ok=True)
        (rootfs / "etc/environment").write_text(image)
        own = self.root / "etc/enroot/environ.d"
        files = [image, *(path.read_text() for path in sorted(own.glob("*.env"))), wins]
        lines = [line.strip() for text in files for line in text.splitlines()]
        good = [line for line in lines if re.match(r"[A-Za-z_]\w*=", line)]
        environ.write_text(
            "".join(re.sub(r"=[\"'](.*)[\"']$", r"=\1", f"{x}") + "\n" for x in good)
        )
        variables = {
            "ENROOT_ROOTFS": str(rootfs), "ENROOT_ENVIRON": str(environ), "ENROOT_PID": "1",
            "ENROOT_MOUNTS": str(self.root / "fstab"),
        }  # fmt: skip
        for hook in sorted((self.root / "etc/enroot/hooks.d").glob("*.sh")):
            assert os.access(hook, os.X_OK)  # Enroot passes over a hook that is no program
            done = self.call(hook, **variables)
            if done.returncode != 0:
                raise HookError(done.stderr)
        return dict(line.partition("=")[::2] for line in environ.read_text().splitlines())


class HookError(Exception):
    """A hook has refused to start the container."""
