"""Accounting with a real MariaDB and a real slurmdbd, and passwords that are hard to quote.

Slow, since MariaDB is downloaded and set up.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.harness.private_root import PrivateRoot
from tests.lifecycle.test_steps import CLUSTER, Machines, only, steps

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.slow,
]
PASSWORDS = ["it's $HOME `id` pässwörd-日本 \\ # %s", '"quoted"\'$(id)#\\']
PACKAGES = ("mariadb-server", "slurmdbd", "munge")
LOCAL = {"database": "local", "password": {"file": "/root/password"}}
GROUPS = [
    CLUSTER["groups"][0],
    {
        **CLUSTER["groups"][1],
        "hardware": {
            "sockets": 1,
            "cores_per_socket": 1,
            "threads_per_core": 1,
            "memory_mib": 500,
        },
    },
]
CHOSEN = only("users", "hosts", "mounts", "munge", "database", "slurmdbd")
# Every command line and environment that any process has while the steps run.
WATCH = r"""
look() { cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null >>/root/seen || true; }
(while :; do look; sleep 0.02; done) &
"""


@pytest.fixture
def head(tmp_path: Path) -> PrivateRoot:
    """A head node without a network, but with the packages that the steps will want."""
    machines = Machines(tmp_path)
    machines.describe(accounting=LOCAL, groups=GROUPS, slurm={"cgroup": False})
    machine = machines["head"]
    archives = machine.file("/var/cache/apt/archives")
    (archives / "partial").mkdir(parents=True)
    options = (
        "-d",
        "-y",
        "-q",
        "--no-install-recommends",
        "-o",
        f"Dir::Cache::archives={archives}",
    )
    download = ["apt-get", *options, "-o", "DPkg::Lock::Timeout=300", "install", *PACKAGES]
    subprocess.run(download, check=True, timeout=300, capture_output=True)
    return machine


def nothing_tells(machine: PrivateRoot, password: str) -> None:
    secret = password.encode()
    assert len(machine.file("/root/seen").read_bytes()) > 1000
    places = [machine.file("/root/seen"), *machine.file("/var/log").rglob("*")]
    places += [*machine.file("/var/lib/muster").rglob("*")]
    assert [str(path) for path in places if path.is_file() and secret in path.read_bytes()] == []


def test_a_database_and_passwords_that_are_hard_to_quote(head: PrivateRoot) -> None:
    conf = head.file("/etc/slurm/slurmdbd.conf")
    for password in PASSWORDS:
        head.file("/root/password").write_text(password + "\n")
        rc, out = head.run(WATCH + CHOSEN)
        assert rc == 0, out
        assert (steps(out)["database"], steps(out)["slurmdbd"]) == ("changed", "changed")
        assert password not in out
        nothing_tells(head, password)
    assert conf.stat().st_mode & 0o777 == 0o600
    before = conf.read_bytes()
    tables = "mariadb -e 'show tables in slurm_acct_db' | wc -l"
    rc, out = head.run(f"{CHOSEN}; {CHOSEN}; {tables}")
    assert rc == 0, out
    assert "6 steps: 0 changed, 6 unchanged" in out
    assert int(out.split()[-1]) > 5  # slurmdbd has made its tables: it could log in
    assert conf.read_bytes() == before
    head.file("/root/password").write_text('two "words"\n')
    rc, out = head.run(CHOSEN)
    assert rc == 78
    assert "a password with white space and a double quote" in out.splitlines()[-1]
    assert 'two "words"' not in out


def test_slurmctld_comes_after_accounting_and_a_database_may_be_late(head: PrivateRoot) -> None:
    chosen = only("users", "hosts", "mounts", "munge", "database", "slurmdbd")
    chosen += " --only slurm_conf --only slurmctld"
    look = "sacctmgr -nP show cluster format=cluster,controlhost"
    head.file("/root/password").write_text(PASSWORDS[0])
    rc, out = head.run(f"{chosen}; {look}; {chosen}")
    assert rc == 0, out
    assert steps(out.partition("test|10.9.0.1\n")[0])["slurmctld"] == "changed"
    assert "8 steps: 0 changed, 8 unchanged" in out.partition("test|10.9.0.1\n")[2]
    # The machine starts again, and its database is somebody else's now, who is slow.
    path = head.file("/root/cluster.yaml")
    external = {**LOCAL, "database": "external", "host": "127.0.0.1"}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "accounting": external}))
    late = (
        "(sleep 20; install -d -o mysql /run/mysqld; runuser -u mysql -- mariadbd) &>/dev/null & "
    )
    rc, out = head.run(late + chosen.replace("--only database ", "") + f"; {look}")
    assert rc == 0, out
    assert (steps(out)["slurmdbd"], steps(out)["slurmctld"]) == ("changed", "changed")
    assert out.splitlines()[-1] == "test|10.9.0.1"
