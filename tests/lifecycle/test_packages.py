"""The step `packages` with the real apt and dpkg, and a repository of one small package on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.private_root import PrivateRoot
from tests.lifecycle.test_steps import Machines, only, steps

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
]
CONTROL = (
    "Package: muster-tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: us\nDescription: small\n"
)
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
open("/run/held", "w")
time.sleep(float(sys.argv[2]))
"""


def build(repo: Path) -> None:
    """Make the package and the list that apt reads."""
    (repo / "tiny" / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (repo / "tiny" / "DEBIAN" / "control").write_text(CONTROL)
    words = ["dpkg-deb", "-b", str(repo / "tiny"), str(repo / "tiny.deb")]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    data = (repo / "tiny.deb").read_bytes()
    more = f"Filename: ./tiny.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (repo / "Packages").write_text(CONTROL + more)


@pytest.fixture
def machine(tmp_path: Path) -> PrivateRoot:
    """A machine whose only source of packages is a folder."""
    machines = Machines(tmp_path)
    machines.describe(packages=["muster-tiny"])
    node = machines["n1"]
    build(node.file("/srv/repo"))
    sources = node.file("/etc/apt/sources.list")
    sources.parent.mkdir(parents=True)
    sources.write_text("deb [trusted=yes] file:/srv/repo ./\n")
    node.run(CLEAN)
    return node


CLEAN = "cd /etc/apt; rm -rf sources.list.d/* /var/lib/apt/lists/*_* /usr/sbin/policy-rc.d; "
CREATE = only("packages")
POLICY = "; [[ ! -e /usr/sbin/policy-rc.d ]] || echo LEFT BEHIND"


def held(lock: str, seconds: float) -> str:
    hold = f"rm -f /run/held; python3 -c '{HOLD}' {lock} {seconds} & "
    return hold + "until [[ -e /run/held ]]; do sleep 0.05; done; "


def test_a_package_is_installed_once(machine: PrivateRoot) -> None:
    rc, out = machine.run(CREATE + POLICY)
    assert (rc, steps(out)) == (0, {"packages": "changed"}), out
    assert "LEFT BEHIND" not in out
    rc, out = machine.run("dpkg-query -W muster-tiny; " + CREATE)
    assert (rc, steps(out)) == (0, {"packages": "unchanged"}), out
    assert "muster-tiny\t1.0" in out


@pytest.mark.parametrize("lock", ["/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock"])
def test_a_lock_is_waited_for(machine: PrivateRoot, lock: str) -> None:
    rc, out = machine.run(held(lock, 4) + CREATE)
    assert (rc, steps(out)) == (0, {"packages": "changed"}), out
    log = machine.file("/var/log/muster/create/packages.log").read_text()
    assert "waiting for process" in log
    assert f"which holds {lock}" in log


def test_a_lock_that_stays_names_its_holder(machine: PrivateRoot) -> None:
    script = held("/var/lib/dpkg/lock-frontend", 300) + CREATE
    rc, out = machine.run(script, MUSTER_LOCK_WAIT_S="1")
    assert rc == 75
    assert "(python3 -c" in out
    assert "still holds /var/lib/dpkg/lock-frontend. Fix: " in out.splitlines()[-1]


def test_killed_inside_apt_a_second_run_repairs(machine: PrivateRoot) -> None:
    # The package's own script kills apt, dpkg, the step and the runner: half installed, no end.
    repo = machine.file("/srv/repo")
    script = repo / "tiny" / "DEBIAN" / "postinst"
    script.write_text("#!/bin/sh\n[ -e /srv/killed ] || { touch /srv/killed; kill -9 -1; }\n")
    script.chmod(0o755)
    build(repo)
    machine.run(CREATE + "; true")  # so that process 1, which cannot be killed, is not the runner
    assert machine.file("/srv/killed").exists()
    assert machine.file("/usr/sbin/policy-rc.d").is_file()
    rc, out = machine.run(CREATE + POLICY + "; dpkg-query -W -f '${db:Status-Status}' muster-tiny")
    assert rc == 0, out
    assert out.endswith("installed")
    assert "LEFT BEHIND" not in out


def test_a_package_that_nobody_has_is_one_line(machine: PrivateRoot) -> None:
    machine.file("/root/cluster.yaml").write_text(
        machine.file("/root/cluster.yaml").read_text().replace("muster-tiny", "muster-none")
    )
    out = machine.run(f"{CREATE} || echo FAILED{POLICY}")[1]
    assert "Unable to locate package muster-none" in out.splitlines()[-2]
    assert out.endswith("FAILED\n")
