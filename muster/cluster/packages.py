"""The Debian packages a local cluster needs: are they there, and if not, install them or say how.

They are found by their programs, not by asking dpkg: somebody may have built Slurm himself.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

from muster import process
from muster.errors import MusterError, UnavailableError

SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = {
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurm-client": ("srun", "sbatch", "sinfo", "scontrol"),
    "munge": ("munged",),
    "iproute2": ("ip",),
    "util-linux": ("unshare", "nsenter", "setpriv", "setsid", "flock", "mountpoint"),
    "mount": ("mount", "umount"),
    "hostname": ("hostname",),
}
PLUGIN_PACKAGE = "slurm-wlm-basic-plugins"
PLUGIN = "select_cons_tres.so"
INSTALL_TIMEOUT_S = 600.0


def missing() -> list[str]:
    """Packages whose programs are not there."""
    path = f"{os.environ.get('PATH', '')}:{SEARCH}"
    absent = [
        package
        for package, programs in PROGRAMS.items()
        if not all(shutil.which(program, path=path) for program in programs)
    ]
    folders = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
    if not any(p for folder in folders for p in Path(folder).glob(f"**/slurm*/{PLUGIN}")):
        absent.append(PLUGIN_PACKAGE)
    return absent


def ensure() -> None:
    """Install what is missing.

    Raises:
        UnavailableError: something is missing and we may not, or cannot, install it.
    """
    absent = missing()
    if not absent:
        return
    command = f"apt-get update && apt-get install --no-install-recommends {' '.join(absent)}"
    where = "this machine"
    what = f"needs the packages {', '.join(absent)}"
    prefix = _become_root()
    if prefix is None or not shutil.which("apt-get", path=SEARCH):
        raise UnavailableError(where, what, f"sudo sh -c '{command}'")
    script = (pkgutil.get_data("muster.cluster", "install.sh") or b"").decode()
    print(f"installing {', '.join(absent)}", flush=True)
    done = process.run([*prefix, "bash", "-c", script, "install", *absent], INSTALL_TIMEOUT_S)
    if not done.ok or missing():
        raise UnavailableError(where, f"{what}; installing them failed: {done.reason}", command)


def ensure_namespaces() -> None:
    """Ask the kernel for the namespaces that a cluster is made of.

    Raises:
        UnavailableError: it refuses, with the setting that forbids it.
    """
    user = [] if os.getuid() == 0 else ["-U", "-r"]
    probe = ["unshare", *user, "-m", "-n", "-u", "-p", "--fork", "--mount-proc", "true"]
    done = process.run(probe, 20)
    if done.ok:
        return
    for name, wanted in (
        ("kernel.unprivileged_userns_clone", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
        ("user.max_user_namespaces", "15000"),
    ):
        if user and _forbids(name, wanted):
            raise UnavailableError(
                "this machine",
                f"the kernel does not let user {os.getuid()} make namespaces",
                f"sudo sysctl -w {name}={wanted}",
            )
    raise UnavailableError(
        "this machine",
        f"no namespaces here ({done.reason})",
        "run it on a whole machine, or in a container started with --privileged",
    )


def _forbids(name: str, wanted: str) -> bool:
    try:
        value = Path("/proc/sys", name.replace(".", "/")).read_text().strip()
    except OSError:
        return False
    return value != "0" if wanted == "0" else value == "0"


def _become_root() -> list[str] | None:
    """Command prefix that makes us root without a question; None when there is none."""
    if os.getuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    try:
        allowed = subprocess.run(
            ["sudo", "-n", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return ["sudo", "-n"] if allowed.returncode == 0 else None


def main() -> int:
    """Ready this machine for a local cluster; returns the exit code, 69 when it cannot be one."""
    try:
        ensure()
        ensure_namespaces()
    except MusterError as error:
        print(f"muster cluster: {error}", file=sys.stderr)
        return error.code
    return 0
