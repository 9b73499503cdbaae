"""The step `ssh_access` on a machine of its own: what it writes, and whom it never shuts out.

PAM, sshd, its installation and the people are real. With a Slurm beside it: test_ssh_with_a_job.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ssh_machine
from tests.harness.private_root import PrivateRoot
from tests.harness.ssh_machine import QUICK, only
from tests.lifecycle.test_steps import steps

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get"),
]
ADDRESSES = {"head": "10.9.0.1", "n1": "10.9.0.11"}
CREATE = only("ssh_access")
PAM = "/etc/pam.d/sshd"
BACKUP = "/var/backups/pam.d-sshd.before-muster"
SSHD = "mkdir -p /run/sshd; /usr/sbin/sshd; "
# Logs in as everybody, over the loopback, and says who was let in.
LOG_IN = r"""
ssh-keygen -q -t ed25519 -N '' -f /run/key
for user in root ana cora; do
  home=$(getent passwd $user | cut -d: -f6)
  install -d -m 700 -o $user $home $home/.ssh
  install -m 600 -o $user /run/key.pub $home/.ssh/authorized_keys
done
for user in root ana cora; do
  ssh -F none -i /run/key -o BatchMode=yes -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR $user@127.0.0.1 'echo "in: $(id -un)"' ||
    echo "refused: $user"
done
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> PrivateRoot:
    """A node with the packages, closed."""
    one = ssh_machine.machine(tmp_path_factory.mktemp("ssh"))
    problem = ssh_machine.download(one)
    if problem is not None:
        pytest.skip(f"packages cannot be downloaded: {problem}")
    ssh_machine.describe(one, ADDRESSES, closed=True, home="/home")
    would = one.run(f"{CREATE} --check")
    assert would[0] == 1
    assert "ssh_access: would change: packages missing: openssh-server libpam-slurm;" in would[1]
    assert not one.file(PAM).exists()
    rc, out = one.run(f"{QUICK} {only('users', 'ssh_access')}; {LOG_IN}")
    assert (rc, steps(out)["ssh_access"]) == (0, "changed"), out
    assert re.findall(r"^(in|refused): (\w+)", out, re.MULTILINE) == [
        ("in", "root"),
        ("refused", "ana"),
        ("in", "cora"),
    ], out
    return one


@pytest.fixture
def open_node(node: PrivateRoot) -> Iterator[PrivateRoot]:
    """The same node as it was before; closed again afterwards."""
    original = node.file(BACKUP).read_bytes()
    node.file(PAM).write_bytes(original)
    node.file(BACKUP).unlink()
    yield node
    node.file(PAM).write_bytes(original)
    ssh_machine.describe(node, ADDRESSES, closed=True, home="/home")
    assert node.run(CREATE)[0] == 0


def test_again_nothing_changes_and_a_backup_is_there(node: PrivateRoot) -> None:
    before = node.file(PAM).read_bytes()
    # The daemon of the last boot is gone; nothing else differs.
    rc, out = node.run(f"{CREATE}; {CREATE}; {CREATE} --check")
    assert rc == 0, out
    assert steps(out.partition("1 steps: 1 changed")[2])["ssh_access"] == "unchanged"
    assert out.endswith("would change nothing\n")
    assert node.file(PAM).read_bytes() == before
    assert before.startswith(node.file(BACKUP).read_bytes())


# Ubuntu from 22.10 on: systemd listens at the port, and starts sshd when somebody comes.
SOCKET = r"""
mkdir -p /run/systemd/system
cat >/run/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >>/run/systemctl.calls
case "$1 $3" in "is-active ssh" | "is-enabled ssh") exit 1 ;; esac
END
chmod +x /run/systemctl
[ -e /usr/bin/systemctl ] || touch /usr/bin/systemctl
mount --bind /run/systemctl /usr/bin/systemctl
"""


def test_where_systemd_listens_for_sshd_no_daemon_is_started(node: PrivateRoot) -> None:
    rc, out = node.run(f"{SOCKET} {CREATE}; cat /run/systemctl.calls; ! pgrep -x sshd")
    assert rc == 0, out
    assert steps(out)["ssh_access"] == "unchanged"
    assert "systemctl is-active --quiet ssh.socket\n" in out
    assert "start" not in out
    # And where it does not listen, the daemon is missed.
    silent = SOCKET.replace('"is-active ssh" |', '"is-active ssh.socket" | "is-active ssh" |')
    rc, out = node.run(f"{silent} {CREATE} --check || cat /run/systemctl.calls")
    assert "ssh_access: would change: ssh does not run" in out


def test_switched_off_everybody_may_come_in_as_before(open_node: PrivateRoot) -> None:
    before = open_node.file(PAM).read_bytes()
    assert open_node.run(CREATE)[0] == 0
    assert open_node.file(PAM).read_bytes() != before
    ssh_machine.describe(open_node, ADDRESSES, closed=False, home="/home")
    rc, out = open_node.run(f"{CREATE}; {SSHD} {LOG_IN} {CREATE} --check")
    assert rc == 0, out
    assert "in: ana" in out
    assert open_node.file(PAM).read_bytes() == before


def test_nothing_is_touched_if_an_administrator_would_be_shut_out(open_node: PrivateRoot) -> None:
    before = open_node.file(PAM).read_bytes()
    # Who runs it may use sudo, but neither cluster.yaml nor the group says so.
    rc, out = open_node.run(CREATE, SUDO_USER="ana")
    assert rc == 65
    assert "ana could not log in over ssh any more, so nothing was changed" in out
    # A line of the site's own that lets only root in.
    line = "account required pam_listfile.so item=user sense=allow onerr=fail file=/etc/only_root"
    add = f"echo root >/etc/only_root; echo '{line}' >>{PAM}; "
    rc, out = open_node.run(add + CREATE)
    assert rc == 65
    assert "cora could not log in over ssh any more, so nothing was changed" in out
    assert open_node.file(PAM).read_bytes() == before + f"{line}\n".encode()


def test_a_file_that_would_let_everybody_in_is_refused(open_node: PrivateRoot) -> None:
    line = "account sufficient pam_permit.so"
    rc, out = open_node.run(f"echo '{line}' >>{PAM}; {CREATE}")
    assert rc == 65
    assert "somebody without a job could still log in, so nothing was changed" in out
    assert open_node.file(PAM).read_text().endswith(f"{line}\n")


def test_a_module_that_is_lost_shuts_no_administrator_out(node: PrivateRoot) -> None:
    module = "/lib/security/pam_slurm.so"
    try:
        rc, out = node.run(f"mv {module} {module}.off; {SSHD} {LOG_IN}")
    finally:
        node.run(f"mv {module}.off {module}")
    assert rc == 0, out
    assert "in: root" in out
    assert "in: cora" in out
    assert "refused: ana" in out


def test_an_sshd_that_does_not_use_pam_is_refused(node: PrivateRoot, tmp_path: Path) -> None:
    conf = node.file("/etc/ssh/sshd_config")
    before = conf.read_bytes()
    rc, out = node.run(f"sed -i '1i UsePAM no' /etc/ssh/sshd_config; {CREATE}")
    conf.write_bytes(before)
    assert rc == 65
    assert "sshd does not use PAM: /etc/ssh/sshd_config says so before" in out
