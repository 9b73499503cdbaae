"""The real steps on machines of their own: each works, changes nothing when it runs again, repairs.

Daemons, users, mounts and locks are real; nothing outside of the machine is touched.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.site import load_site
from tests.harness.private_root import ROOT, PrivateRoot

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
]
CLUSTER: dict[str, Any] = {
    "name": "test",
    "groups": [
        {"name": "head", "role": "head", "nodes": ["head"], "addresses": {"head": "10.9.0.1"}},
        {
            "name": "n",
            "role": "compute",
            "nodes": ["n[1-2]"],
            "addresses": {"n1": "10.9.0.11", "n2": "10.9.0.12"},
        },
    ],
    "partitions": [{"name": "main", "groups": ["n"]}],
    "mounts": [{"path": "/mnt", "kind": "existing", "wait_s": 20}],
    "shared_dir": "/mnt/.muster",
    "users": {
        "home": "/mnt/home",
        "groups": [{"name": "research", "gid": 2000}],
        "users": [
            {
                "name": "ana",
                "uid": 2001,
                "group": "research",
                "ssh_keys": ["ssh-ed25519 AAAAC3Nza ana@laptop"],
            },
            {"name": "ben", "uid": 2002, "group": "research", "groups": ["mail"]},
        ],
    },
    "accounting": {"database": "off"},
}
CREATE = f"bash {ROOT}/lifecycle/create.sh /root/cluster.yaml"


class Machines:
    """A head and two nodes that share a disk."""

    def __init__(self, folder: Path) -> None:
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.all = {
            name: PrivateRoot(folder / name, name, address, self.shared)
            for name, address in (("head", "10.9.0.1"), ("n1", "10.9.0.11"), ("n2", "10.9.0.12"))
        }
        self.describe()

    def describe(self, **changes: object) -> None:
        """Give all machines the description, with keys changed."""
        for machine in self.all.values():
            path = machine.file("/root/cluster.yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump({**CLUSTER, **changes}))

    def __getitem__(self, name: str) -> PrivateRoot:
        return self.all[name]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def steps(out: str) -> dict[str, str]:
    """{step: what became of it}."""
    return dict(re.findall(r"^([a-z_]+): (changed|unchanged|failed)", out, re.MULTILINE))


def only(*names: str) -> str:
    return " ".join([CREATE, *(f"--only {name}" for name in names)])


def test_hosts_gives_every_node_its_name_and_keeps_what_others_wrote(machines: Machines) -> None:
    before = (
        "printf '127.0.0.1 localhost\\n127.0.1.1 n1.site n1 alias\\n9.9.9.9 mine\\n' >/etc/hosts"
    )
    rc, out = machines["n1"].run(f"{before}; {only('hosts')}; getent hosts n2 head; cat /etc/hosts")
    assert (rc, steps(out)) == (0, {"hosts": "changed"})
    assert re.search(r"10\.9\.0\.12 +n2", out)
    text = machines["n1"].file("/etc/hosts").read_text()
    assert "127.0.0.1 localhost\n" in text
    assert "9.9.9.9 mine\n" in text
    assert not re.search(r"127.0.1.1.*\bn1( |$)", text, re.MULTILINE)
    assert steps(machines["n1"].run(only("hosts"))[1]) == {"hosts": "unchanged"}
    assert machines["n1"].file("/etc/hosts").read_text() == text
    # A node that has left is forgotten, and only it.
    alone = {"nodes": ["n1"], "addresses": {"n1": "10.9.0.11"}}
    head, nodes = CLUSTER["groups"]
    machines.describe(groups=[head, {**nodes, **alone}])
    machines["n1"].run(only("hosts"))
    text = machines["n1"].file("/etc/hosts").read_text()
    assert "n2" not in text
    assert "9.9.9.9 mine\n" in text


def test_users_have_the_same_ids_and_homes(machines: Machines) -> None:
    names = ("users", "mounts", "homes", "ssh_keys")
    look = "; id ana; id ben; ls -ldn /mnt/home/ana; cat /mnt/home/ana/.ssh/authorized_keys"
    head = [name for name in names if name != "users"]
    rc, out = machines["head"].run(only("users", *head) + look)
    assert rc == 0, out
    assert "uid=2001(ana) gid=2000(research)" in out
    assert "mail" in out
    assert re.search(r"drwx------ .* 2001 +2000 .*/mnt/home/ana", out)
    assert "ssh-ed25519 AAAAC3Nza ana@laptop\n" in out
    key = machines.shared / "home" / "ana" / ".ssh" / "id_ed25519"
    first = key.read_bytes()
    assert key.with_suffix(".pub").read_text() in (key.parent / "authorized_keys").read_text()
    rc, out = machines["n1"].run(only("users", "mounts", "homes") + look)
    assert (rc, steps(out)["homes"]) == (0, "unchanged"), out
    again = steps(machines["head"].run(only("users", *head))[1])
    assert again == dict.fromkeys(["users", *head], "unchanged")
    assert key.read_bytes() == first


def test_an_id_that_is_taken_is_refused(machines: Machines) -> None:
    rc, out = machines["n1"].run("useradd -u 2001 other; " + only("users"))
    assert rc == 65
    assert "step 'users': failed with exit code 65: " in out
    assert "id 2001, meant for ana, belongs to other here. Fix: " in out
    rc, out = machines["n2"].run("useradd -u 3000 ana; " + only("users"))
    assert rc == 65
    assert "user ana has id 3000 here, not 2001" in out


def test_a_link_in_a_home_leads_root_nowhere(machines: Machines) -> None:
    machines["head"].run(only("users", "mounts", "homes"))
    trap = "rm -rf /mnt/home/ana/.ssh; ln -s /etc/trap /mnt/home/ana/.ssh; mkdir -p /etc/trap; "
    rc, out = machines["head"].run(trap + only("homes"))
    assert (rc, steps(out)) == (0, {"homes": "unchanged"}), out
    assert (
        "ana cannot write" in machines["head"].file("/var/log/muster/create/homes.log").read_text()
    )
    assert not machines["head"].file("/etc/trap/authorized_keys").exists()


LATE = "umount -l /mnt; ( sleep 3; mount --bind /srv/late /mnt ) & "


def test_a_mount_that_comes_late_is_waited_for(machines: Machines) -> None:
    rc, out = machines["n1"].run("mkdir -p /srv/late; " + LATE + only("mounts"))
    assert (rc, steps(out)) == (0, {"mounts": "changed"}), out


def test_a_mount_that_does_not_come_is_one_line(machines: Machines) -> None:
    mounts = [{"path": "/mnt", "kind": "existing", "wait_s": 1}]
    machines.describe(mounts=mounts)
    rc, out = machines["n1"].run(f"umount -l /mnt; {only('mounts')} --wait-s 1")
    assert rc == 75
    assert "muster create: n1: step 'mounts': failed with exit code 75 after 2 tries" in out
    assert "/mnt is not mounted after 1 s" in out.splitlines()[-1]


def test_a_mount_that_cannot_be_written_is_one_line(machines: Machines) -> None:
    machines.describe(mounts=[{"path": "/mnt", "kind": "existing", "wait_s": 1}])
    script = f"mount -o remount,bind,ro /mnt; {only('mounts')}"
    rc, out = machines["n1"].run(script)
    assert rc == 74
    assert "/mnt is mounted, but cannot be written after 1 s: touch: " in out
    assert "Read-only file system" in out.splitlines()[-2] + out.splitlines()[-1]


def test_another_file_system_than_the_one_meant_is_refused(machines: Machines) -> None:
    mount = {"path": "/mnt", "kind": "existing", "wait_s": 1, "min_size_tb": 100}
    machines.describe(mounts=[mount])
    rc, out = machines["n1"].run(only("mounts"))
    assert rc == 78
    assert "less than the 100.0 TB of cluster.yaml: another file system?" in out


def test_two_nodes_probe_one_disk_at_once(machines: Machines) -> None:
    both = [machines[name].start(only("mounts")) for name in ("n1", "n2")]
    for machine in both:
        out = machine.communicate(timeout=120)[0]
        assert machine.returncode == 0, out
    assert list(machines.shared.glob(".muster-probe*")) == []


def test_one_munge_key_for_all(machines: Machines) -> None:
    look = "; munge -n </dev/null | base64 >/mnt/credential; sha256sum /etc/munge/munge.key"
    chosen = only("users", "mounts", "munge")
    rc, out = machines["head"].run(chosen + look)
    assert (rc, steps(out)["munge"]) == (0, "changed"), out
    key = out.split()[-2]
    shared = base64.b64decode((machines.shared / ".muster" / "munge.key").read_bytes())
    assert (len(shared), hashlib.sha256(shared).hexdigest()) == (128, key)
    rc, out = machines["n1"].run(
        f"{chosen}; base64 -d /mnt/credential | unmunge | head -1; sha256sum /etc/munge/munge.key"
    )
    assert rc == 0, out
    assert "Success" in out
    assert out.split()[-2] == key
    text = (machines.shared / ".muster" / "munge.key").read_text()
    assert text not in out
    assert (machines.shared / ".muster" / "munge.key").stat().st_mode & 0o777 == 0o600
    rc, out = machines["n1"].run(f"{chosen}; sha256sum /etc/munge/munge.key")
    assert steps(out)["munge"] == "changed"  # the daemon of the last boot is gone, not the key
    assert out.split()[-2] == key


def test_a_node_that_comes_before_the_head_waits_for_its_key(machines: Machines) -> None:
    node = machines["n2"].start(only("users", "mounts", "munge"))
    end = time.monotonic() + 60
    while "applying" not in _ledger(machines["n2"]) and time.monotonic() < end:
        time.sleep(0.1)
    assert machines["head"].run(only("users", "mounts", "munge"))[0] == 0
    out = node.communicate(timeout=120)[0]
    assert node.returncode == 0, out


def _ledger(machine: PrivateRoot) -> str:
    path = machine.file("/var/lib/muster/create/ledger.json")
    return path.read_text().partition('"munge"')[2] if path.exists() else ""


def test_an_address_that_is_no_node_is_one_line(machines: Machines) -> None:
    rc, out = machines["n1"].run(f"ip address del 10.9.0.11/24 dev eth0; {CREATE} --wait-s 0")
    assert rc == 75
    assert "this machine: it is none of the 3 nodes (addresses none, name 'n1')" in out
    assert "Traceback" not in out


def test_a_network_that_comes_late_is_waited_for(machines: Machines) -> None:
    late = (
        "ip address del 10.9.0.11/24 dev eth0; (sleep 3; ip address add 10.9.0.11/24 dev eth0) & "
    )
    rc, out = machines["n1"].run(f"{late} {only('hosts')}")
    assert rc == 0
    assert out.startswith("waiting up to 300 s: this machine: it is none of the 3 nodes")


def test_scratch_falls_back_and_says_which_kind_it_took(machines: Machines) -> None:
    machines.describe(scratch={"kinds": ["instance_store", "folder"], "min_free_gib": 0.01})
    look = "; findmnt -no SOURCE,TARGET /scratch; stat -c %a /scratch"
    rc, out = machines["n1"].run(only("scratch") + look)
    assert (rc, steps(out)) == (0, {"scratch": "changed"}), out
    assert "/var/scratch" in out
    assert out.split()[-1] == "1777"
    log = machines["n1"].file("/var/log/muster/create/scratch.log").read_text()
    assert "/scratch is of kind folder, with " in log
    fstab = machines["n1"].file("/etc/fstab").read_text()
    assert (
        "\n/var/scratch /scratch none bind,nofail,x-systemd.requires-mounts-for=/var 0 0\n" in fstab
    )
    assert (
        steps(machines["n1"].run(f"mount /scratch; {only('scratch')}")[1])["scratch"] == "unchanged"
    )


def test_a_disk_that_the_platform_mounted_comes_first(machines: Machines) -> None:
    kinds = ["instance_store", "folder"]
    machines.describe(scratch={"kinds": kinds, "min_free_gib": 0.01, "stores": ["/run/nvme"]})
    disk = "mkdir /run/nvme; mount -t tmpfs -o size=64m disk /run/nvme; "
    rc, out = machines["n1"].run(disk + only("scratch") + "; findmnt -no SOURCE /scratch")
    assert rc == 0, out
    assert "disk[/scratch]" in out
    assert machines["n1"].run(disk + only("scratch"))[0] == 0


def test_a_disk_without_room_is_no_scratch(machines: Machines) -> None:
    machines.describe(scratch={"kinds": ["instance_store"], "stores": ["/run/nvme"]})
    disk = "mkdir /run/nvme; mount -t tmpfs -o size=64m disk /run/nvme; "
    rc, out = machines["n1"].run(disk + only("scratch"))
    assert rc == 69
    assert "this node has no scratch of 20.0 GiB among: instance_store" in out.splitlines()[-1]


def test_limits_reach_slurmd_on_compute_nodes(machines: Machines) -> None:
    for name in ("head", "n1"):
        assert machines[name].run(only("limits"))[0] == 0
    override = "/etc/systemd/system/slurmd.service.d/muster.conf"
    assert "LimitMEMLOCK=infinity" in machines["n1"].file(override).read_text()
    assert not machines["head"].file(override).exists()
    assert steps(machines["n1"].run(only("limits"))[1]) == {"limits": "unchanged"}


def test_the_site_file_is_written_until_somebody_takes_it_over(machines: Machines) -> None:
    replace = ["/opt/it's", "{node}"]
    machines.describe(replace_command=replace, health={"profile": "cpu"})
    program = machines["n1"].file("/usr/local/bin/muster")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    script = f"cd {ROOT} && python3 -m muster create /root/cluster.yaml --only muster"
    rc, out = machines["n1"].run(script)
    assert (rc, steps(out)) == (0, {"muster": "changed"}), out
    path = machines["n1"].file("/etc/muster/site.yaml")
    site = load_site(path)
    assert (site.replace_command, site.profile) == (replace, "cpu")
    assert (site.mounts, site.shared_paths) == (["/mnt"], ["/mnt"])
    assert str(site.scratch_path) == "/scratch"
    path.write_text("profile: mine\n")
    assert steps(machines["n1"].run(script)[1]) == {"muster": "unchanged"}
    assert path.read_text() == "profile: mine\n"
