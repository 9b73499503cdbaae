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
mount --rbind "$REPO" "root$REPO"
mount -t tmpfs -o mode=755 run root/run
mount --rbind "$PRIVATE/shared" root/mnt
ip link set lo up
ip link add eth0 type bridge
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

    def start(self, script: str, **env: str) -> subprocess.Popen[str]:
        """Turn it on, run a script of bash as root, turn it off."""
        words = ("unshare", "-m", "-p", "-f", "-n", "-u", "--kill-child", "bash", "-c", ENTER, "_")
        environment = {
            "PATH": f"{PYTHON.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "PRIVATE": str(self.folder),
            "REPO": str(ROOT),
            "NAME": self.name,
            "ADDRESS": self.address,
            "PYTHONDONTWRITEBYTECODE": "1",
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
        with self.start(script, **env) as machine:
            try:
                out = machine.communicate(timeout=300)[0]
            finally:
                machine.kill()
        return machine.returncode, out

    def file(self, path: str) -> Path:
        """Where a file lies that the machine has changed."""
        return self.folder / "upper" / path.lstrip("/")
