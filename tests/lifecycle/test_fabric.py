"""The step `fabric` on machines made of files: no test has seen an adapter of any kind.

/sys is what the test writes there; the installer, fi_info and modprobe write down what they were
called with, and do what the real ones do to /sys.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.harness.private_root import PrivateRoot
from tests.lifecycle.test_steps import CLUSTER, Machines, only, steps

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.skipif(  # the machines of these tests have the disk of this one and no network
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
]
GPUS = {"hardware": {"sockets": 1, "cores_per_socket": 1, "threads_per_core": 2,
                     "memory_mib": 2000, "gpus": 8}}  # fmt: skip
CHOSEN = only("mounts", "fabric")
DETECTED = "/etc/slurm/muster/environment.d/detected.env"
MODPROBE = "#!/bin/bash\necho $1 >>/root/modprobe.words\nmkdir -p /sys/module/$1\n"
MODINFO = "#!/bin/bash\n[[ $1 == nvidia_peermem || $1 == gdrdrv ]]\n"
FI_INFO = "#!/bin/bash\necho $* >>/root/fi_info.words\n[[ -e /sys/class/infiniband/rdmap0 ]]\n"
INSTALLER = """#!/bin/bash
set -eu
echo "$*" >/root/efa.words
mkdir -p /opt/amazon/efa/bin /sys/class/infiniband/rdmap0/{device,ports/1}
ln -s ../../../bus/pci/drivers/efa /sys/class/infiniband/rdmap0/device/driver
echo '4: ACTIVE' >/sys/class/infiniband/rdmap0/ports/1/state
cp fi_info /opt/amazon/efa/bin
echo '# EFA installer version: 1.43.2' >/opt/amazon/efa_installed_packages
"""


def put(machine: PrivateRoot, path: str, text: str) -> Path:
    """A file of a machine; a program, if it begins like one."""
    file = machine.file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755 if text.startswith("#!") else 0o644)
    return file


def run(machine: PrivateRoot, script: str) -> tuple[int, str]:
    """Run it there with the /sys of the test, and with little patience."""
    return machine.run(f"umount -l /sys; {script}", MUSTER_DEVICE_WAIT_S="1")


def adapter(machine: PrivateRoot, name: str, driver: str, layer: str, state: str) -> None:
    """An RDMA device with one port, as the kernel shows it."""
    at = f"/sys/class/infiniband/{name}"
    put(machine, f"{at}/ports/1/state", f"{state}\n")
    put(machine, f"{at}/ports/1/link_layer", f"{layer}\n")
    machine.file(f"{at}/device").mkdir()
    machine.file(f"{at}/device/driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    made = Machines(tmp_path)
    for path, text in (("/usr/sbin/modprobe", MODPROBE), ("/usr/sbin/modinfo", MODINFO)):
        put(made["n1"], path, text)
    return made


def describe(machines: Machines, **fabric: object) -> None:
    head, nodes = CLUSTER["groups"]
    machines.describe(groups=[head, {**nodes, **GPUS}], fabric=fabric)


def test_infiniband_gets_its_modules_and_jobs_only_its_ports(machines: Machines) -> None:
    node = machines["n1"]
    adapter(node, "mlx5_0", "mlx5_core", "InfiniBand", "4: ACTIVE")
    adapter(node, "mlx5_1", "mlx5_core", "InfiniBand", "1: DOWN")
    adapter(node, "mlx5_2", "mlx5_core", "Ethernet", "4: ACTIVE")
    describe(
        machines, kind="infiniband", environment={"NCCL_IB_HCA": "mlx5_7", "NCCL_DEBUG": "a b"}
    )
    # What the adapters' packages do needs them; that they are wanted is seen.
    rc, out = run(
        node, f"{CHOSEN} --check || true; dpkg-query -W rdma-core ibverbs-utils infiniband-diags"
    )
    missing = re.findall(r"packages missing: ([^;\n]+)", out)
    assert {word for line in missing for word in line.split()} | set(installed(out)) == {
        "rdma-core", "ibverbs-utils", "infiniband-diags"
    }  # fmt: skip
    have = "dpkg-query() { echo 'installed 1'; }; export -f dpkg-query; "
    rc, out = run(node, f"{have} {CHOSEN}; {CHOSEN}")
    assert rc == 0, out
    assert re.findall(r"^fabric: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"], out
    lines = node.file(DETECTED).read_text().splitlines()
    assert {"NCCL_NET=IB", "NCCL_IB_HCA==mlx5_0:1"} <= set(lines)
    assert not [line for line in lines if line.startswith("MELLANOX")]
    assert node.file("/root/modprobe.words").read_text() == "nvidia_peermem\n"
    modules = node.file("/etc/modules-load.d/muster-fabric.conf").read_text()
    assert modules == "# Written by muster.\nnvidia_peermem\n"


def installed(out: str) -> list[str]:
    """Names of packages that dpkg knows."""
    return [
        name for name, version in re.findall(r"^([a-z-]+)\t(\S+)", out, re.MULTILINE) if version
    ]


@pytest.mark.slow
def test_what_cluster_yaml_says_comes_first_in_containers(machines: Machines) -> None:
    fabric = {"kind": "none", "environment": {"NCCL_DEBUG": "WARN INFO"}}
    machines.describe(containers={"enroot": True}, fabric=fabric)
    rc, out = run(machines["n1"], f"{CHOSEN}; {CHOSEN}")
    assert rc == 0, out
    assert re.findall(r"^fabric: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"], out
    environ = machines["n1"].file("/etc/enroot/environ.d")
    assert (environ / "60-fabric.env").read_text().splitlines()[1:] == ["NCCL_DEBUG=WARN INFO"]
    assert (environ / "fabric" / "expected").read_text() == "none\n"
    machines.describe(containers={"enroot": True})
    assert run(machines["n1"], CHOSEN)[0] == 0
    assert not (environ / "60-fabric.env").exists()


@pytest.mark.slow
def test_efa_is_installed_where_it_was_not(machines: Machines) -> None:
    node = machines["n1"]
    put(node, "/sys/bus/pci/devices/0000:10:1b.0/vendor", "0x1d0f\n")
    put(node, "/sys/bus/pci/devices/0000:10:1b.0/device", "0xefa2\n")
    rc, out = run(node, CHOSEN)
    assert rc == 69, out
    assert "this node has no EFA driver with libfabric: set fabric.efa_installer" in out
    describe(machines, kind="auto", efa_installer="1.43.2")
    pack(machines.shared / ".muster" / "packages")
    rc, out = run(node, f"{CHOSEN}; {CHOSEN}")
    assert rc == 0, out
    assert re.findall(r"^fabric: (\w+)", out, re.MULTILINE) == ["changed", "unchanged"], out
    assert node.file("/root/efa.words").read_text() == "-y\n"
    assert set(node.file("/root/fi_info.words").read_text().splitlines()) == {"-p efa"}
    assert "FI_PROVIDER=efa" in node.file(DETECTED).read_text().splitlines()
    assert node.file("/root/modprobe.words").read_text() == "gdrdrv\n"


def pack(folder: Path) -> None:
    """The installer as Amazon packs it."""
    folder.mkdir(parents=True)
    with tarfile.open(folder / "aws-efa-installer-1.43.2.tar.gz", "w:gz") as archive:
        for name, text in (("efa_installer.sh", INSTALLER), ("fi_info", FI_INFO)):
            entry = tarfile.TarInfo(f"aws-efa-installer/{name}")
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.slow
def test_a_node_without_the_fabric_that_it_should_have_is_one_line(machines: Machines) -> None:
    describe(machines, kind="efa")
    rc, out = run(machines["n1"], CHOSEN)
    assert rc == 69
    line = out.splitlines()[-1]
    assert "step 'fabric': failed with exit code 69" in line
    assert "this node has no efa, which cluster.yaml says it has" in line
    adapter(machines["n1"], "mlx5_0", "mlx5_core", "Ethernet", "1: DOWN")
    machines.describe(fabric={"kind": "roce"})
    have = "dpkg-query() { echo 'installed 1'; }; export -f dpkg-query; "
    rc, out = run(machines["n1"], have + CHOSEN)
    assert rc == 69, out
    assert "no active port of kind 'roce' on n1. Fix: " in out.splitlines()[-1]


@pytest.mark.slow
def test_a_node_with_none_is_left_alone(machines: Machines) -> None:
    rc, out = run(machines["n1"], CHOSEN)
    assert (rc, steps(out)["fabric"]) == (0, "unchanged"), out
    assert not machines["n1"].file(DETECTED).exists()
    assert not machines["n1"].file("/root/modprobe.words").exists()
