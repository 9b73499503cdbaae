"""Where Ubuntu 22.04 and 24.04 differ from Debian 12 as steps see it: by the files that differ.

These machines are Debian's in all else. What was learnt the hard way with each of them is in the
table: PEP 668, needrestart, user namespaces behind AppArmor, sources of apt in the new form. An
sshd that systemd starts is in test_ssh_access.py, a /var/log that the group syslog may write in
test_log_rotation.py.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.private_root import ROOT
from tests.lifecycle.test_containers import CHOSEN, SCRATCH, enroot
from tests.lifecycle.test_fabric import put
from tests.lifecycle.test_steps import Machines, only

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen", "curl"))),
        reason="needs the packages procps, openssh-client and curl",
    ),
]
RESTRICT = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
SOURCES = "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu\nSuites: noble\nComponents: main\n"


@dataclass(frozen=True)
class System:
    """What steps see of one."""

    name: str
    release: str  # /etc/os-release
    python: str  # its python3
    managed: bool  # PEP 668: pip refuses to install
    needrestart: bool  # restarts daemons after an update
    restricted: bool  # AppArmor refuses user namespaces
    sources: str  # of apt, below /etc/apt


SYSTEMS = [
    System("debian12", "ID=debian\nVERSION_ID=12\n", "3.11", True, False, False, "sources.list"),
    System("ubuntu22", "ID=ubuntu\nVERSION_ID=22.04\n", "3.10", False, True, False, "sources.list"),
    System(
        "ubuntu24", "ID=ubuntu\nVERSION_ID=24.04\n", "3.12", True, True, True,
        "sources.list.d/ubuntu.sources",
    ),
]  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
@pytest.mark.slow
def test_a_system(tmp_path: Path, system: System) -> None:
    machines = Machines(tmp_path)
    machines.describe(containers={"enroot": True}, scratch=SCRATCH)
    enroot(machines.shared / ".muster" / "packages")
    node = machines["n1"]
    put(node, "/etc/os-release", system.release)
    if system.managed:
        put(node, f"/usr/lib/python{system.python}/EXTERNALLY-MANAGED", "[externally-managed]\n")
    if system.needrestart:
        put(node, "/etc/needrestart/needrestart.conf", "$nrconf{restart} = 'i';\n")
    sources = put(node, f"/etc/apt/{system.sources}", SOURCES if "ubuntu" in system.sources else "")
    before = sources.read_text()
    # The kernel's settings are another's here: a folder in their place, and a systemd that is none.
    keys = "mkdir -p /run/systemd/system /run/keys/{kernel,user}; "
    keys += "echo 9 >/run/keys/user/max_user_namespaces; "
    if system.restricted:
        keys += "echo 1 >/run/keys/kernel/apparmor_restrict_unprivileged_userns; "
    keys += "mount --bind /run/keys /proc/sys; "
    first = f"{keys}{only('packages')}; {CHOSEN}; {CHOSEN}; [[ ! -e {RESTRICT} ]] || cat {RESTRICT}"
    rc, out = node.run(first)
    assert rc == 0, out
    assert re.findall(r"^enroot: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"], out
    restart = node.file("/etc/needrestart/conf.d/muster.conf")
    assert restart.exists() == system.needrestart
    namespaces = node.file("/etc/sysctl.d/91-muster-enroot.conf")
    if system.restricted:
        assert out.endswith("\n0\n")  # in the kernel that runs, and for the next boot
        assert "kernel.apparmor_restrict_unprivileged_userns=0\n" in namespaces.read_text()
    else:
        assert not namespaces.exists()
    assert sources.read_text() == before


@pytest.mark.slow
def test_a_profile_of_apparmor_makes_the_setting_needless(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.describe(containers={"enroot": True}, scratch=SCRATCH)
    enroot(machines.shared / ".muster" / "packages")
    put(machines["n1"], "/usr/share/enroot/apparmor.profile", "profile enroot {}\n")
    keys = (
        "mkdir -p /run/systemd/system /run/keys/kernel; "
        "echo 1 >/run/keys/kernel/apparmor_restrict_unprivileged_userns; "
        "mount --bind /run/keys /proc/sys; "
    )
    rc, out = machines["n1"].run(f"{keys}{CHOSEN}; cat {RESTRICT}")
    assert rc == 0, out
    assert out.endswith("\n1\n")


@pytest.mark.slow
def test_a_machine_without_user_namespaces_is_one_line(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.describe(containers={"enroot": True}, scratch=SCRATCH)
    enroot(machines.shared / ".muster" / "packages")
    keys = "mkdir -p /run/keys/user; echo 0 >/run/keys/user/max_user_namespaces; "
    keys += "mount --bind /run/keys /proc/sys; "
    rc, out = machines["n1"].run(keys + CHOSEN)
    assert rc == 65, out
    assert "user.max_user_namespaces is 0 here: Enroot needs user namespaces" in out


# What Ubuntu 22.04 has of Slurm itself.
OLD_SLURM = "#!/bin/sh\necho slurm-wlm 21.08.5\n"


def test_the_slurm_of_ubuntu_22_is_too_old_and_that_is_one_line(tmp_path: Path) -> None:
    head = Machines(tmp_path)["head"]
    put(head, "/usr/sbin/slurmctld", OLD_SLURM)
    rc, out = head.run(only("slurm_conf"))
    assert rc == 78, out
    why = "slurm: version: 21.08 is older than 22.05. Fix: update Slurm: "
    assert why in out.splitlines()[-1]
    assert not head.file("/etc/slurm/slurm.conf").exists()


# Netplan writes the network of Ubuntu anew from its own files, systemd-resolved the name servers.
OF_THE_SYSTEM = re.compile(r"netplan|/etc/network|networkd|ifupdown|resolv\.conf|resolved")


def test_no_step_configures_network_or_name_servers() -> None:
    for path in [*(ROOT / "lifecycle").rglob("*.sh")]:
        code = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
        assert (path.name, OF_THE_SYSTEM.findall(code)) == (path.name, [])


def test_no_step_installs_into_the_systems_python() -> None:
    for path in [*(ROOT / "lifecycle").rglob("*.sh")]:
        words = re.findall(r"\bpip3?\b|--break-system-packages|easy_install", path.read_text())
        assert (path.name, words) == (path.name, [])
