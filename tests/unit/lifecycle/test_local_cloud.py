"""What the local cloud writes is read by the readers of real platforms' files."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from lifecycle.description import hyperpod, load
from lifecycle.description.model import Description
from lifecycle.description.nodes import all_nodes
from muster.cli import main
from muster.cluster import LocalCluster, enter
from muster.cluster.archive import PACKAGES, SETTINGS
from muster.cluster.created import bundle, description, files, image
from muster.cluster.shape import Shape
from muster.errors import UsageError
from tests.harness.created import ROOT

BUILT = (".so", ".pyc", ".o")
SHAPE = Shape(nodes=3, created=True, accounting=True, settings=(("MinJobAge", "10"),))


def described(folder: Path, shape: Shape) -> Description:
    for name, value in (
        ("resource_config.json", description.resource_config(shape)),
        ("provisioning_parameters.json", description.provisioning()),
        ("cluster.yaml", description.cluster_yaml(shape)),
    ):
        (folder / name).write_text(json.dumps(value))
    platform = hyperpod.platform_values(
        hyperpod.read_resource_config(folder / "resource_config.json"),
        hyperpod.read_provisioning(folder / "provisioning_parameters.json"),
    )
    return load.load_description(folder / "cluster.yaml", (), platform)


def test_the_three_files_are_one_description(tmp_path: Path) -> None:
    found = described(tmp_path, SHAPE)
    nodes = [(node.name, node.role, node.address) for node in all_nodes(found)]
    assert nodes == [
        (SHAPE.slurm_name(name), "head" if name == "n0" else "compute", SHAPE.address(name))
        for name in SHAPE.machines
    ]
    assert nodes[0] == ("ip-10-77-0-10", "head", "10.77.0.10")
    assert [group.name for group in found.groups if not group.nodes] == ["ordered"]
    assert (found.platform, found.accounting.database) == ("plain", "local")
    assert [(one.name, one.groups) for one in found.partitions] == [
        ("main", ["workers", "ordered"])
    ]
    hardware = found.groups[1].hardware
    assert hardware is not None
    assert (hardware.cpus, hardware.gpus) == (SHAPE.cpus, SHAPE.gpus)
    assert found.slurm.settings["MinJobAge"] == "10"


def test_without_gpus_and_accounting(tmp_path: Path) -> None:
    found = described(tmp_path, Shape(nodes=1, gpus=0, created=True))
    hardware = found.groups[1].hardware
    assert hardware is not None
    assert (hardware.gpus, hardware.gpu_type, found.health.profile) == (0, None, "cpu")
    assert found.accounting.database == "off"


@pytest.mark.parametrize(
    "values",
    [
        {"created": True, "prolog": True},
        {"created": True, "out_of_service": ("n1",)},
        {"accounting": True},
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Shape(**values)  # type: ignore[arg-type]


def test_accounting_is_asked_for_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Shape] = []
    monkeypatch.setattr(LocalCluster, "up", lambda self, *_, **__: seen.append(self.shape))
    assert main(["cluster", "up", "--created", "--accounting", "--nodes", "2"]) == 0
    assert main(["cluster", "up", "--created", "--nodes", "2"]) == 0
    assert [shape.accounting for shape in seen] == [True, False]
    assert main(["cluster", "up", "--accounting"]) == 64
    assert len(seen) == 2


def test_a_shape_goes_through_json() -> None:
    assert Shape.from_json(json.loads(json.dumps(SHAPE.to_json()))) == SHAPE


def test_only_created_clusters_have_a_machine_for_the_head() -> None:
    assert Shape(nodes=2).machines == ("n1", "n2")
    with pytest.raises(UsageError):
        Shape(nodes=2).check_node("n0")
    assert SHAPE.check_node("n0") == "n0"


def test_a_folder_of_a_cluster_that_holds(tmp_path: Path) -> None:
    order = {"base": "/b", "bundle": str(bundle.make(ROOT, tmp_path / "m")), "disks": None}
    folder = tmp_path / "c"
    folder.mkdir()
    files.write(folder, SHAPE, {**order, "hold": True})
    assert (folder / "nodes" / "n0" / "hold").exists()
    assert not (folder / "nodes" / "n1" / "from_image").exists()
    assert (folder / "nodes" / "ip-10-77-0-11").resolve() == folder / "nodes" / "n1"
    assert "NODES=(n0 n1 n2 n3)\n" in (folder / "etc" / "world.env").read_text()
    assert (folder / "bundle" / "on_create.sh").exists()


def test_a_bundle_is_made_once_and_anew_when_a_step_has_changed(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for package in (*PACKAGES, *SETTINGS):
        (checkout / package).mkdir(parents=True)
        (checkout / package / "__init__.py").write_text('"""Empty."""\n')
    step = checkout / "lifecycle" / "steps" / "a.sh"
    step.parent.mkdir()
    step.write_text("one\n")
    first = bundle.make(checkout, tmp_path / "place")
    made = (first / "muster.pyz").stat().st_mtime_ns
    assert bundle.make(checkout, tmp_path / "place") == first
    assert (first / "muster.pyz").stat().st_mtime_ns == made
    step.write_text("two\n")
    second = bundle.make(checkout, tmp_path / "place")
    assert (second / "steps" / "a.sh").read_text() == "two\n"
    assert not first.exists()


def test_what_steps_install_is_in_the_archive(tmp_path: Path) -> None:
    """Every folder of ours that a step asks for is there, with its programs."""
    words = re.compile(r"assets::folder ([a-z_/]+)\)")
    steps = [*(ROOT / "lifecycle").glob("steps/*.sh"), *(ROOT / "lifecycle").glob("lib/*.sh")]
    wanted = {folder for step in steps for folder in words.findall(step.read_text())}
    assert {"containers/docker", "containers/enroot", "slurm/spank"} <= wanted
    pyz = zipfile.ZipFile(bundle.make(ROOT, tmp_path) / "muster.pyz")
    for folder in sorted(wanted):
        files_there = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        names = {str(path.relative_to(ROOT)) for path in files_there if path.suffix not in BUILT}
        assert names
        assert names <= set(pyz.namelist()), folder


def test_disks_are_those_of_this_shape_and_these_steps(tmp_path: Path) -> None:
    one = image.disks(tmp_path, tmp_path / "base-1", ROOT, SHAPE)
    assert image.disks(tmp_path, tmp_path / "base-1", ROOT, SHAPE) == one
    others = (
        image.disks(tmp_path, tmp_path / "base-2", ROOT, SHAPE),
        image.disks(tmp_path, tmp_path / "base-1", ROOT, Shape(nodes=2, created=True)),
    )
    assert one not in others


def test_a_command_on_a_machine_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    order = enter.on_machine(enter.Order(["ls", "a b"], user="ana"))
    assert list(order.argv) == ["su", "-", "ana", "-c", "ls 'a b'"]
    assert (order.node, order.user) == ("n0", None)
    assert order.env is not None
    assert "PYTHONPATH" not in order.env
    assert enter.on_machine(enter.Order(["ls"], node="n2")).node == "n2"


@pytest.mark.parametrize("folder", ["/usr/local/machines", "/var/x", "/etc"])
def test_images_do_not_lie_where_machines_look(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MACHINES", folder)
    with pytest.raises(UsageError, match="which the machines have from here"):
        image.place(ROOT)
