"""A machine that has sshd and Slurm's PAM modules: downloaded here, installed by the step itself.

Machines of tests have no network, so apt finds the packages where it would have put them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.harness.private_root import ROOT, PrivateRoot

PACKAGES = ("openssh-server", "libpam-slurm", "libpam-slurm-adopt", "sudo")
PEOPLE = ("ana", "ben", "cora")
"""As the local cluster numbers them; cora is an administrator."""
FIRST_ID = 5001
CREATE = f"bash {ROOT}/lifecycle/create.sh /root/cluster.yaml"
# No pages of manuals are counted, and no file is waited for until it is on the disk.
QUICK = "rm -f /var/lib/man-db/auto-update; echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/quick; "
INSTALL = f"{QUICK} apt-get -y -q --no-install-recommends install {' '.join(PACKAGES)}"


def users(home: str) -> dict[str, Any]:
    """The people, each in a group of the same name and id."""
    ids = {name: FIRST_ID + number for number, name in enumerate(PEOPLE)}
    return {
        "home": home,
        "groups": [{"name": name, "gid": number} for name, number in ids.items()],
        "users": [
            {"name": name, "uid": number, "group": name, "admin": name == "cora"}
            for name, number in ids.items()
        ],
    }


def describe(
    machine: PrivateRoot, addresses: dict[str, str], *, closed: bool, home: str, **more: Any
) -> None:
    """Give a machine its cluster.yaml. `closed`: ssh only with a job."""
    head, *nodes = addresses
    slurm = {"cgroup": False, "ssh_with_job_only": closed, **more.pop("slurm", {})}
    values = {
        "name": "test",
        "groups": [
            {"name": head, "role": "head", "nodes": [head], "addresses": {head: addresses[head]}},
            {
                "name": "n",
                "role": "compute",
                "nodes": nodes,
                "addresses": {node: addresses[node] for node in nodes},
            },
        ],
        "partitions": [{"name": "main", "groups": ["n"]}],
        "users": users(home),
        "accounting": {"database": "off"},
        "slurm": slurm,
        **more,
    }
    path = machine.file("/root/cluster.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))


def only(*steps: str) -> str:
    """The command that runs some steps."""
    return " ".join([CREATE, *(f"--only {step}" for step in steps)])


def download(machine: PrivateRoot) -> str | None:
    """Put the packages where the machine's apt looks for them; what went wrong, or None."""
    archives = machine.file("/var/cache/apt/archives")
    (archives / "partial").mkdir(parents=True)
    options = ["-d", "-y", "-q", "--no-install-recommends"]
    options += ["-o", f"Dir::Cache::archives={archives}", "-o", "DPkg::Lock::Timeout=300"]
    done = subprocess.run(
        ["apt-get", *options, "install", *PACKAGES],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return None if done.returncode == 0 else (done.stderr.splitlines() or ["apt-get failed"])[-1]


def machine(folder: Path) -> PrivateRoot:
    """A compute node n1 at 10.9.0.11 without the packages."""
    shared = folder / "shared"
    shared.mkdir(parents=True)
    one = PrivateRoot(folder / "n1", "n1", "10.9.0.11", shared)
    (one.folder / "n1").mkdir()
    return one
