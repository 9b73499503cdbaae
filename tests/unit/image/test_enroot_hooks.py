"""The hooks, variables and mounts of a site, executed as Enroot executes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lifecycle.description.model import FABRICS, Scratch
from slurm.conf.other_files import PLUGIN_DIR, PYXIS
from slurm.lint.rules.site import _FABRIC
from tests.unit.image.enroot_start import ENROOT, HookError, Node, Port

FOUND = {"NCCL_SOCKET_IFNAME": "=ens32", "GLOO_SOCKET_IFNAME": "ens32"}
TCP = {"NCCL_NET": "Socket", **FOUND, "MELLANOX_VISIBLE_DEVICES": "none"}
EFA = {
    "NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa", **FOUND, "MELLANOX_VISIBLE_DEVICES": "none",
}  # fmt: skip
GPU = ("0x10de", "0x030200")


def efa(number: int) -> Port:
    return Port(f"rdmap{number}s0", "efa", "Unspecified")


def rdma(devices: str, mellanox: str = "all") -> dict[str, str]:
    found = {"NCCL_NET": "IB", "NCCL_IB_HCA": devices, **FOUND}
    return {**found, "MELLANOX_VISIBLE_DEVICES": mellanox}


IB = (Port("mlx5_0", "mlx5_core"), Port("mlx5_1", "mlx5_core"))
ETHERNET = Port("mlx5_2", "mlx5_core", "Ethernet")
DOWN = Port("mlx5_3", "mlx5_core", state="1: DOWN")
NODES = {
    "nothing": ((), TCP),
    "efa": ((efa(0), efa(1)), EFA),
    "infiniband": (IB, rdma("=mlx5_0:1,mlx5_1:1")),
    "infiniband and storage over ethernet": ((*IB, ETHERNET), rdma("=mlx5_0:1,mlx5_1:1")),
    "two ports of one device": (
        (Port("mlx4_0", "mlx4_core"), Port("mlx4_0", "mlx4_core", number=2)),
        rdma("=mlx4_0:1,mlx4_0:2"),
    ),
    "a port is down": ((*IB, DOWN), rdma("=mlx5_0:1,mlx5_1:1")),
    "all ports are down": ((DOWN,), TCP),
    "roce": ((ETHERNET,), rdma("=mlx5_2:1")),
    "roce of another make": (
        (Port("bnxt_re0", "bnxt_en", "Ethernet"), ETHERNET),
        rdma("=bnxt_re0:1,mlx5_2:1", "none"),
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_the_variables_are_those_of_what_the_node_has(name: str, tmp_path: Path) -> None:
    ports, wanted = NODES[name]
    given = Node(tmp_path, ports, (GPU,)).write().start()
    assert given == wanted


def test_every_kind_has_its_file_and_every_file_a_node() -> None:
    kinds = {path.stem for path in (ENROOT / "environ.d/fabric").iterdir()}
    assert kinds == {*FABRICS, "tcp"} - {"auto", "none"}
    assert {*kinds, "nothing"} - {"tcp"} <= set(NODES)


def test_a_node_without_a_default_route_says_no_interface(tmp_path: Path) -> None:
    routes = "Iface\tDestination\n"
    given = Node(tmp_path, IB, (GPU,), routes).write().start()
    assert {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}.isdisjoint(given)
    assert given["NCCL_NET"] == "IB"


def test_the_site_wins_over_the_image_and_loses_against_the_job(tmp_path: Path) -> None:
    site = {"60-site.env": "NCCL_NET=IBext_v8\nNCCL_DEBUG=WARN\n"}
    node = Node(tmp_path, IB, (GPU,), site=site).write()
    image = "FI_PROVIDER=tcp\nNCCL_NET=Socket\nNCCL_IB_HCA='mlx5_9'\nPATH=/usr/bin\n"
    given = node.start(image, wins="GLOO_SOCKET_IFNAME=eth1\n")
    assert given == {
        **rdma("=mlx5_0:1,mlx5_1:1"),  # NCCL_IB_HCA in place of the image's
        "NCCL_NET": "IBext_v8", "NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "eth1",
        "FI_PROVIDER": "tcp", "PATH": "/usr/bin",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "ports", "net"),
    [
        ("auto", (), "Socket"),
        ("none", IB, "Socket"),
        ("roce", (*IB, ETHERNET), "IB"),
        ("efa", (efa(0),), "AWS Libfabric"),
    ],
)
def test_what_the_site_says_it_has(
    expected: str, ports: tuple[Port, ...], net: str, tmp_path: Path
) -> None:
    node = Node(tmp_path, ports, (GPU,), site={"fabric/expected": f"{expected}\n"}).write()
    given = node.start()
    assert given["NCCL_NET"] == net
    assert given.get("NCCL_IB_HCA") == ("=mlx5_2:1" if expected == "roce" else None)


@pytest.mark.parametrize(
    ("expected", "ports"), [("efa", ()), ("infiniband", (DOWN, ETHERNET)), ("roce", IB)]
)
def test_a_node_that_lost_its_fabric_starts_no_container(
    expected: str, ports: tuple[Port, ...], tmp_path: Path
) -> None:
    node = Node(tmp_path, ports, site={"fabric/expected": expected}).write()
    with pytest.raises(HookError, match=rf"no active port of kind '{expected}' .* Fix: "):
        node.start()


def test_half_an_installation_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path, IB).write()
    (tmp_path / "etc/enroot/environ.d/fabric/infiniband.env").unlink()
    with pytest.raises(HookError, match=r"no .*/infiniband\.env\. Fix: install it"):
        node.start()


def test_the_same_lines_for_jobs_without_a_container(tmp_path: Path) -> None:
    node = Node(tmp_path, (efa(0),)).write()
    done = node.call(ENROOT / "hooks.d/20-muster-fabric.sh", "print")
    assert dict(line.partition("=")[::2] for line in done.stdout.splitlines()) == EFA
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("pci", "devices"),
    [
        ((), "void"),
        ((("0x8086", "0x030000"), ("0x10de", "0x068000")), "void"),  # NVIDIA's NVSwitch alone
        ((GPU,), "all"),
        ((("0x1d0f", "0xefa100"), ("0x10de", "0x030000")), "all"),
    ],
)
def test_a_gpu_image_starts_on_a_node_without_gpus(
    pci: tuple[tuple[str, str], ...], devices: str, tmp_path: Path
) -> None:
    given = Node(tmp_path, pci=pci).write().start("NVIDIA_VISIBLE_DEVICES=all\n")
    assert given["NVIDIA_VISIBLE_DEVICES"] == devices


def test_fabric_variables_stand_in_environ_d_and_nowhere_else() -> None:
    """No recipe, Dockerfile, hook or setting has one; `muster lint` has the same list of names."""
    root = ENROOT.parents[1]
    files = [
        *root.glob("recipes/*/*"), *(root / "containers").rglob("*"), *root.glob("slurm/*.sbatch")
    ]  # fmt: skip
    setting = re.compile(rf"^\s*(?:export |ENV |ARG )?({_FABRIC.pattern})=", re.MULTILINE)
    found = {
        str(path.relative_to(root)) for path in files
        if path.is_file() and path.suffix != ".py" and setting.search(path.read_text("utf-8"))
    }  # fmt: skip
    assert found == {
        f"containers/enroot/environ.d/fabric/{kind}.env"
        for kind in ("efa", "infiniband", "roce", "tcp")
    }


def test_the_page_names_every_file() -> None:
    page = (ENROOT.parents[1] / "docs/reference/enroot_site.md").read_text("utf-8")
    named = re.findall(r"^\| `((?:enroot/|pyxis)[\w./-]+)` \|", page, re.MULTILINE)
    files = [ENROOT.parent / "pyxis.conf", *(p for p in ENROOT.rglob("*") if p.is_file())]
    assert sorted(named) == sorted(str(path.relative_to(ENROOT.parent)) for path in files)


MOUNT_OPTIONS = {
    *("x-create=dir", "x-create=file", "x-create=auto", "bind", "rbind", "ro", "rw", "nosuid"),
    *("nodev", "noexec", "private", "slave", "nofail", "silent"),
}


def test_every_mount_is_one_of_enroot_and_at_its_own_path() -> None:
    for file in (ENROOT / "mounts.d").iterdir():
        assert file.suffix == ".fstab"  # Enroot reads no other
        lines = [line.split() for line in file.read_text().splitlines()]
        for source, target, kind, options in (words for words in lines if words[0][0] != "#"):
            assert source == target
            assert kind == "none"
            assert set(options.split(",")) <= MOUNT_OPTIONS
            assert "nofail" in options  # a node without it still starts containers
    assert source == str(Scratch().path)


def test_pyxis_has_the_same_options_wherever_its_line_stands() -> None:
    text = (ENROOT.parent / "pyxis.conf").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [f"optional {PLUGIN_DIR}/spank_pyxis.so {PYXIS}"]
    options = dict(word.split("=") for word in PYXIS.split())
    # In memory a large image fills the node; an unknown option and the plugin does not load.
    assert options.pop("runtime_path") == "/var/lib/enroot/pyxis"
    known = {"container_scope", "execute_entrypoint", "sbatch_support", "use_enroot_load"}
    assert set(options) <= known
