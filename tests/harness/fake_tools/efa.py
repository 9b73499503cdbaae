"""Sixteen EFA devices, two for each GPU."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.fake_tools.node import FakeNode

COUNT = 16
DRIVER = "/sys/bus/pci/drivers/efa"


def add(node: FakeNode) -> None:
    """On the PCI bus, in /sys/class/infiniband, and in fi_info."""
    said = []
    for index in range(COUNT):
        name = device(index)
        node.files[f"{pci(index)}/vendor"] = "0x1d0f"
        node.files[f"{pci(index)}/device"] = "0xefa2"
        node.files[f"{DRIVER}/{pci(index).rpartition('/')[2]}"] = ""
        node.files[f"{name}/ports/1/state"] = "4: ACTIVE"
        node.files[f"{name}/ports/1/phys_state"] = "5: LinkUp"
        node.files[f"{name}/ports/1/link_layer"] = "Unspecified"
        node.files[f"{name}/ports/1/rate"] = "100 Gb/sec (4X EDR)"
        node.links[f"{name}/device/driver"] = "../../../../bus/pci/drivers/efa"
        said.append(
            f"provider: efa\n    fabric: efa\n    domain: rdmap{index:02d}s0-rdm\n"
            "    version: 122.0\n    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
        )
    node.files[f"{DRIVER}/module"] = ""
    node.files[f"{DRIVER}/bind"] = ""
    node.say("fi_info", "".join(said) * 2, words="-p efa")  # it shows each more than once
    node.profile = replace(node.profile, efa_devices=COUNT)


def device(index: int) -> str:
    """Its folder in /sys/class/infiniband."""
    return f"/sys/class/infiniband/rdmap{index:02d}s0"


def pci(index: int) -> str:
    """Its folder on the PCI bus."""
    return f"/sys/bus/pci/devices/0000:{0x40 + index:02x}:1b.0"


def take(node: FakeNode, *indices: int) -> None:
    """These devices are gone, from the bus on."""
    for index in indices:
        node.remove(pci(index))
        node.remove(f"{DRIVER}/{pci(index).rpartition('/')[2]}")
        node.remove(device(index))
