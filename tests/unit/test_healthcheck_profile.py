"""Profiles: every file is right, and `auto` takes the one of the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from healthcheck import profile
from healthcheck.profile import Profile, load_profile
from muster.errors import ConfigError
from tests.harness.fake_tools.node import FakeNode

FOLDER = Path(profile.__file__).with_name("profiles")
PRODUCT = "/sys/devices/virtual/dmi/id/product_name"


def machine(product: str | None) -> FakeNode:
    return FakeNode(files={} if product is None else {PRODUCT: f"{product}\n"})


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_and_every_size_of_it(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    names = [path.stem, *(f"{path.stem}.{size}" for size in values.get("sizes", {}))]
    for name in names:
        found = load_profile(name)
        assert found.gpus is None or 0 <= found.gpus <= 16
        assert found.cpus is None
        if found.gpus == 1:
            assert not found.nvswitches
            assert not found.nvlinks


def test_names() -> None:
    assert profile.names() == sorted(["auto", *(path.stem for path in FOLDER.glob("*.yaml"))])
    wanted = "p4d p4de p5 p5e p5en p6-b200 g5 g6 trn1 cpu local a100_sxm h100_sxm h200_sxm b200_sxm"
    assert set(wanted.split()) | {"a100_pcie", "h100_pcie", "h200_pcie"} <= set(profile.names())


ROWS = {
    # machine: what auto expects of its GPUs
    "p5.48xlarge": replace(load_profile("h100_sxm"), memory_gib=2048, nvme_disks=8),
    "p4d.24xlarge": replace(load_profile("a100_sxm"), memory_gib=1152, nvme_disks=8),
    "p5.4xlarge": Profile(
        gpus=1, pcie_width=16, pcie_gen=5, mig=False, ecc=True, memory_gib=256
    ),
    "g6.12xlarge": Profile(gpus=4, nvlinks=0),
    "p5.96xlarge": Profile(),  # a size that nobody knows yet
    "p5": Profile(),
    "Virtual Machine": Profile(),
    "../../etc.passwd": Profile(),
    "local.gpus": Profile(),
    "": Profile(),
    None: Profile(),
}  # fmt: skip


@pytest.mark.parametrize("product", ROWS)
def test_auto(product: str | None) -> None:
    assert load_profile("auto", machine(product).door()) == ROWS[product]


def test_the_number_of_efa_devices_is_expected_only_by_name() -> None:
    """How many a machine has was decided when it was ordered."""
    assert load_profile("auto", machine("p5.48xlarge").door()).efa_devices is None
    assert load_profile("p5").efa_devices == 32


def test_auto_without_a_machine_expects_nothing() -> None:
    assert load_profile("auto") == Profile()


def test_by_name() -> None:
    assert load_profile("local") == Profile(gpus=8, nvlinks=0, gpus_on_pci=False, slurm_sizes=False)
    assert load_profile("g6").gpus == 8
    assert load_profile("g6.12xlarge").gpus == 4
    with pytest.raises(ConfigError, match="Did you mean 'local'"):
        load_profile("locl")
    with pytest.raises(ConfigError, match=r"there is no profile 'g6\.large'"):
        load_profile("g6.large")


def test_a_profile_of_the_site(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("gpus: 4\n")
    assert load_profile(str(path)).gpus == 4
    path.write_text("gpu: 4\n")
    with pytest.raises(ConfigError, match="Did you mean 'gpus'"):
        load_profile(str(path))
