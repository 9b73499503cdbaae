"""`muster check --learn`: what a good node teaches is what the checks then expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import yaml

from healthcheck.learn import LEARNT, learn
from healthcheck.profile import Profile
from muster.config import build
from tests.harness.fake_tools import good
from tests.harness.fake_tools.gpus import pci, rack
from tests.harness.fake_tools.node import FakeNode


def learnt(node: FakeNode) -> Profile:
    """The profile that `muster check --learn` writes, read again."""
    node.profile = Profile()
    lines = learn(node.facts("return", limit_s=45))
    return build(Profile, yaml.safe_load("\n".join(lines)), "learnt")


def test_what_the_fit_node_has() -> None:
    found = learnt(good.node())
    assert (found.gpus, found.pcie_width, found.pcie_gen, found.nvlinks) == (8, 16, 5, 18)
    assert (found.nvswitches, found.mig, found.ecc) == (4, False, True)
    assert (found.drivers, found.vbios) == (["570.133.20"], ["96.00.A5.00.01"])
    assert found.neuron_devices is None


def test_every_expectation_can_be_learnt_or_is_a_choice() -> None:
    chosen = {"gpus_on_pci", "slurm_sizes", "ib_link_layer"}
    chosen |= {"allreduce_busbw_gb_s", "pair_busbw_gb_s", "disk_write_mb_s", "disk_read_mb_s"}
    chosen.add("pair_tcp_gbit_s")
    assert set(LEARNT) | chosen == {field.name for field in fields(Profile)}


def test_the_node_is_fit_by_its_own_profile() -> None:
    node = good.node()
    node.profile = learnt(good.node())
    bad = [f for f in node.check(when="return", limit_s=45) if f.status in ("FAIL", "WARN")]
    assert bad == []


LOSSES: dict[str, Callable[[FakeNode], object]] = {
    "gpu_count": lambda node: node.remove(pci(rack(node).cards.pop(3))),
    "gpu_pcie_link": lambda node: (
        rack(node).cards[3].row.update({"pcie.link.width.current": "8", "pcie.link.width.max": "8"})
    ),
    "nvlink_links": lambda node: rack(node).cards[3].links.__setitem__(0, False),
    "nvswitch_count": lambda node: node.remove("/sys/bus/pci/devices/0000:05:00.0"),
    "gpu_versions": lambda node: rack(node).cards[3].row.update({"driver_version": "570.86.15"}),
    "gpu_mig": lambda node: rack(node).cards[3].row.update({"mig.mode.current": "Enabled"}),
}


@pytest.mark.parametrize("check", LOSSES)
def test_another_node_that_has_less_is_found(check: str) -> None:
    node = good.node()
    node.profile = learnt(good.node())
    LOSSES[check](node)
    found = {f.status for f in node.check(check, when="return", limit_s=45)}
    assert found & {"FAIL", "WARN"}


def test_what_cannot_be_read_or_differs_is_left_out() -> None:
    node = good.node()
    node.say("nvidia-smi", rc=255)
    found = learnt(node)
    assert (found.gpus, found.nvlinks, found.mig, found.drivers) == (None, None, None, [])
    node = good.node()
    rack(node).cards[3].row["pcie.link.width.max"] = "8"
    assert learnt(node).pcie_width is None


def test_a_machine_without_gpus() -> None:
    node = good.node()
    del node.tools["nvidia-smi"]
    assert learnt(node).gpus == 0
