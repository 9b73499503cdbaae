"""Eight H100 as nvidia-smi shows them; `node.parts["gpus"]` has a dict of fields for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tests.harness.fake_tools.node import Answer, FakeNode

_BUSES = ("53", "64", "75", "86", "97", "A8", "B9", "CA")


def add(node: FakeNode) -> None:
    """Eight GPUs in nvidia-smi and on the PCI bus."""
    rows = [gpu(index) for index in range(8)]
    node.parts["gpus"] = rows
    node.tools["nvidia-smi"] = lambda arguments: smi(node.parts["gpus"], arguments)
    node.profile = replace(node.profile, gpus=8)
    for row in rows:
        device = pci(row)
        node.files[f"{device}/vendor"] = "0x10de"
        node.files[f"{device}/class"] = "0x030200"


def pci(row: dict[str, str]) -> str:
    """The folder of a GPU below /sys."""
    return f"/sys/bus/pci/devices/{row['pci.bus_id'][4:].lower()}"


def gpu(index: int) -> dict[str, str]:
    """One fit, idle GPU: value by field of --query-gpu."""
    return {
        "index": str(index),
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-0a1b2c{index:02d}-3d4e-5f60-7182-93a4b5c6d7e8",
        "serial": f"16503231{index:05d}",
        "pci.bus_id": f"00000000:{_BUSES[index]}:00.0",
        "ecc.errors.uncorrected.volatile.total": "0",
    }


def smi(rows: Sequence[dict[str, str]], arguments: Sequence[str]) -> Answer:
    """What nvidia-smi answers to a query; a field that no GPU has is unknown to the driver."""
    query = re.search(r"--query-gpu=(\S+)", " ".join(arguments))
    if not query:
        return Answer("Invalid combination of input arguments.", rc=1)
    fields = query[1].split(",")
    for field in fields:
        if rows and not any(field in row for row in rows):
            return Answer(f'Field "{field}" is not a valid field to query.\n', rc=2)
    if not rows:
        return Answer("No devices were found\n", rc=6)
    return Answer("".join(", ".join(row.get(f, "[N/A]") for f in fields) + "\n" for row in rows))
