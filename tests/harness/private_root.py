"""A machine of its own for a test: everything of this one, but what it changes stays apart.

An overlay over the host's root in mount, process, host name and network namespaces. Each `run` is
one time that the machine is up: its processes end with it, its disk stays. /run is new each time.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.sys.executable)  # type: ignore[attr-defined]
ENTER = r"""
set -euo pipefail
cd "$PRIVATE"
mount -t overlay overlay -o "lowerdir=/,upperdir=upper,workdir=work" root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount --rbind /sys root/sys
mount --rbind "$REPO" "root$REPO"
mount -t tmpfs -o mode=755 run root/run
mount --rbind "$PRIVATE/shared" root/mnt
ip link set lo up
if [[ -e /dev/fd/7 ]]; then # the network namespace of a switch
  ip link add eth0 type veth peer name "v$NAME" netns /proc/self/fd/7
  nsenter --net=/proc/self/fd/7 ip link set "v$NAME" master br0 up
  exec 7<&-
else
  ip link add eth0 type bridge
fi
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
hostname "$NAME"
exec chroot root bash -euo pipefail -c "$1"
"""


class PrivateRoot:
    """One machine."""

    def __init__(self, folder: Path, name: str, address: str, shared: Path) -> None:
        self.folder, self.name, self.address = folder, name, address
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        (folder / "shared").symlink_to(shared)

    @staticmethod
    def environment() -> dict[str, str]:
        """What every program on a machine finds."""
        return {
            "PATH": f"{PYTHON.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, script: str, switch: int | None = None, **env: str) -> subprocess.Popen[str]:
        """Turn it on, run a script of bash as root, turn it off.

        Args:
            script: what to run.
            switch: process in the network namespace with the bridge br0; None: no network.
            env: further variables.
        """
        words = ["unshare", "-m", "-p", "-f", "-n", "-u", "--kill-child", "bash", "-c", ENTER, "_"]
        if switch is not None:
            connect = 'exec 7</proc/self/ns/net; exec "$@"'
            words = ["nsenter", "-t", str(switch), "-n", "bash", "-c", connect, "_", *words]
        environment = {
            **self.environment(),
            "PRIVATE": str(self.folder),
            "REPO": str(ROOT),
            "NAME": self.name,
            "ADDRESS": self.address,
            **env,
        }
        return subprocess.Popen(
            [*words, script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str, **env: str) -> tuple[int, str]:
        """The same to its end: (exit code, everything it printed)."""
        with self.start(script, None, **env) as machine:
            try:
                out = machine.communicate(timeout=300)[0]
            finally:
                machine.kill()
        return machine.returncode, out

    def file(self, path: str) -> Path:
        """Where a file lies that the machine has changed."""
        return self.folder / "upper" / path.lstrip("/")
