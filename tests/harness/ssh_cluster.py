"""A head and two nodes with people, sshd and Slurm: machines of a test on one network.

What people meet when they log in was made by our steps: accounts, homes, keys, PAM, sshd. Slurm's
daemons are real, and started here in the plainest way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.harness import ssh_machine
from tests.harness.private_network import PrivateNetwork
from tests.harness.private_root import PrivateRoot
from tests.harness.ssh_machine import only

ADDRESSES = {"head": "10.9.0.1", "n1": "10.9.0.11", "n2": "10.9.0.12"}
STEPS = {
    "head": ("hosts", "users", "mounts", "homes", "ssh", "ssh_keys"),
    "n1": ("hosts", "users", "mounts", "homes", "ssh", "ssh_access"),
    "n2": ("hosts", "users", "mounts", "homes", "ssh", "ssh_access"),
}
CONF = """\
ClusterName=people
SlurmctldHost=head(10.9.0.1)
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
NodeName=n1 NodeAddr=10.9.0.11 CPUs=2
NodeName=n2 NodeAddr=10.9.0.12 CPUs=2
PartitionName=main Nodes=ALL Default=YES State=UP
"""
JOBS = {
    False: "ProctrackType=proctrack/linuxproc\n",
    True: "ProctrackType=proctrack/cgroup\nPrologFlags=Contain\n",
}
MUNGE = """
mkdir -p /run/munge /etc/munge /var/spool/slurmctld /var/spool/slurmd
install -m 400 -o munge -g munge /mnt/munge.key /etc/munge/munge.key
chown munge:munge /run/munge
runuser -u munge -- /usr/sbin/munged
"""
FREEZER = Path("/sys/fs/cgroup/freezer")
# A part of this kernel's freezer cgroups for each node, as if it had its own.
OWN_FREEZER = f"mkdir {FREEZER}/$PART; mount --bind {FREEZER}/$PART {FREEZER}; "


def no_freezer() -> str | None:
    """Why jobs cannot be kept in cgroups here; None: they can."""
    if not (FREEZER / "cgroup.procs").exists():
        return f"{FREEZER} is no cgroup of version 1"
    return None if os.access(FREEZER, os.W_OK) else f"{FREEZER} cannot be written"


class SshCluster:
    """The machines. `cgroup`: jobs are kept in cgroups, so that logins can be adopted."""

    def __init__(self, folder: Path, installed: PrivateRoot, *, cgroup: bool) -> None:
        """Make the disks; `installed` has the packages."""
        self.cgroup = cgroup
        self.parts: list[Path] = []
        self.network = PrivateNetwork()
        shared = folder / "shared"
        shared.mkdir()
        (shared / "munge.key").write_bytes(os.urandom(128))
        self.machines: dict[str, PrivateRoot] = {}
        for name, address in ADDRESSES.items():
            machine = PrivateRoot(folder / name, name, address, shared)
            (machine.folder / "upper").rmdir()
            upper = machine.folder / "upper"
            subprocess.run(["cp", "-a", str(installed.folder / "upper"), str(upper)], check=True)
            ssh_machine.describe(
                machine,
                ADDRESSES,
                closed=True,
                home="/mnt/home",
                slurm={"cgroup": cgroup},
                mounts=[{"path": "/mnt", "kind": "existing", "wait_s": 20}],
            )
            machine.file("/etc/slurm").mkdir(parents=True, exist_ok=True)
            machine.file("/etc/slurm/slurm.conf").write_text(CONF + JOBS[cgroup])
            machine.file("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
            self.machines[name] = machine

    def up(self) -> None:
        """Turn everything on, run the steps, start the daemons."""
        for machine in self.machines.values():
            self.network.up(machine)
        self.sure("head", only(*STEPS["head"]))
        key = "mkdir -pm 700 ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 <<<y"
        self.sure("head", f"{key} >/dev/null; cp ~/.ssh/id_ed25519.pub /mnt/root.pub")
        root = "mkdir -pm 700 ~/.ssh; cat /mnt/root.pub >>~/.ssh/authorized_keys; "
        both = [self.network.start(name, root + only(*STEPS[name])) for name in ("n1", "n2")]
        for node in both:
            out = node.communicate(timeout=600)[0]
            if node.returncode != 0:
                raise RuntimeError(out)
        self.sure("head", f"{MUNGE} slurmctld -c")
        for name in ("n1", "n2"):
            part = FREEZER / f"muster-{os.getpid()}-{name}"
            freezer = OWN_FREEZER if self.cgroup else ""
            if self.cgroup:
                self.parts.append(part)
            self.sure(name, f"{freezer}{MUNGE} slurmd -b", PART=part.name)
        idle = "[[ $(timeout 5 sinfo -h -o '%D %T') == '2 idle' ]]"
        self.sure("head", f"for _ in {{1..300}}; do {idle} && exit; sleep 0.2; done; sinfo; exit 1")

    def down(self) -> None:
        """Turn everything off, and take our part of the cgroups away."""
        self.network.__exit__(None, None, None)
        for part in self.parts:
            for folder in sorted(part.rglob("*"), reverse=True):
                if folder.is_dir():
                    folder.rmdir()
            part.rmdir()

    def run(self, name: str, script: str, user: str = "root") -> tuple[int, str]:
        """Run a script on a machine as somebody: (exit code, everything that was said)."""
        home = "/root" if user == "root" else f"/mnt/home/{user}"
        as_user = f"runuser -u {user} -- env HOME={home} bash -euo pipefail -c 'cd; eval \"$0\"'"
        return self.network.run(name, f'{as_user} "$SCRIPT"', SCRIPT=script)

    def sure(self, name: str, script: str, **env: str) -> str:
        """Run a script as root that must not fail; what it said."""
        rc, out = self.network.run(name, script, **env)
        if rc != 0:
            raise RuntimeError(f"{name}: exit code {rc}\n{out}")
        return out

    def ssh(self, user: str, node: str, command: str = "hostname") -> tuple[bool, str]:
        """Log in on a node from the head: (whether that worked, everything that was said)."""
        rc, out = self.run("head", f"ssh -o BatchMode=yes {node} '{command}'", user)
        return rc == 0, out

    def background(self, user: str, script: str) -> subprocess.Popen[str]:
        """Begin a script on the head as somebody."""
        words = f'runuser -u {user} -- env HOME=/mnt/home/{user} bash -c "$SCRIPT"'
        return self.network.start("head", words, SCRIPT=script)


def forget(folder: Path) -> None:
    """Remove a cluster's disks at once: three copies of the packages."""
    shutil.rmtree(folder, ignore_errors=True)
