"""Eight H100 as nvidia-smi, /sys and /proc show them; `rack(node)` is what a test edits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.harness.fake_tools.node import Answer, FakeNode

DRIVER = "570.133.20"
_BUSES = ("53", "64", "75", "86", "97", "A8", "B9", "CA")
_SWITCHES = ("05", "06", "07", "08")
_AER = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}


@dataclass
class Card:
    """One GPU; a test changes what it likes.

    Attributes:
        row: value by field of --query-gpu.
        detail: number by name in `nvidia-smi -q`, in its order.
        links: for each NVLink, whether it is up.
        link_errors: count by kind, of every link.
        processes: ids of the processes on it.
    """

    row: dict[str, str]
    detail: dict[str, str]
    links: list[bool] = field(default_factory=lambda: [True] * 18)
    link_errors: dict[str, int] = field(
        default_factory=lambda: {"Replay": 0, "Recovery": 0, "CRC": 0}
    )
    processes: list[int] = field(default_factory=list)

    @property
    def head(self) -> str:
        """The line with which nvidia-smi begins to speak of it."""
        return f"GPU {self.row['index']}: {self.row['name']} (UUID: {self.row['uuid']})"


@dataclass
class Rack:
    """All GPUs of a node, and the fields that its driver does not know."""

    cards: list[Card]
    unknown: set[str] = field(default_factory=set)

    def answer(self, arguments: Sequence[str]) -> Answer:
        """What nvidia-smi says."""
        words = " ".join(arguments)
        if words.startswith("--query-gpu="):
            return self._query(words.split("=", 1)[1].split(" ")[0].split(","))
        if not self.cards:
            return Answer("No devices were found\n", rc=6)
        answers = {
            "-L": self._list,
            "-q": self._detail,
            "nvlink -s": self._links,
            "nvlink -e": self._link_errors,
            "--help-query-gpu": self._help,
            "--query-compute-apps=gpu_uuid,pid --format=csv,nounits": self._processes,
        }
        if words not in answers:
            return Answer("Invalid combination of input arguments.\n", rc=1)
        return Answer("".join(f"{line}\n" for line in answers[words]()))

    def _query(self, fields: list[str]) -> Answer:
        wrong = next((name for name in fields if name not in self._known()), None)
        if wrong:
            return Answer(f'Field "{wrong}" is not a valid field to query.\n\n', rc=2)
        if not self.cards:
            return Answer("No devices were found\n", rc=6)
        rows = [", ".join(card.row[name] for name in fields) for card in self.cards]
        return Answer("".join(f"{row}\n" for row in rows))

    def _known(self) -> set[str]:
        return set(gpu(0).row) - self.unknown

    def _list(self) -> Iterator[str]:
        return (card.head for card in self.cards)

    def _help(self) -> Iterator[str]:
        yield 'List of valid properties to query for the switch "--query-gpu=":'
        for name in sorted(self._known()):
            alias = ' or "gpu_bus_id"' if name == "pci.bus_id" else ""
            yield from ("", f'"{name}"{alias}', f"Something about {name}.")

    def _links(self) -> Iterator[str]:
        for card in self.cards:
            yield card.head
            for number, up in enumerate(card.links):
                yield f"\t Link {number}: " + ("26.562 GB/s" if up else "<inactive>")

    def _link_errors(self) -> Iterator[str]:
        for card in self.cards:
            yield card.head
            for number in range(len(card.links)):
                for kind, count in card.link_errors.items():
                    yield f"\t Link {number}: {kind} Errors: {count}"

    def _processes(self) -> Iterator[str]:
        yield "gpu_uuid, pid"
        yield from (f"{card.row['uuid']}, {pid}" for card in self.cards for pid in card.processes)

    def _detail(self) -> Iterator[str]:
        yield from ("", "==============NVSMI LOG==============", "")
        yield f"Driver Version                            : {DRIVER}"
        yield f"Attached GPUs                             : {len(self.cards)}"
        for card in self.cards:
            yield f"GPU {card.row['pci.bus_id']}"
            yield f"    Product Name                          : {card.row['name']}"
            yield from (f"        {name:<34}: {value}" for name, value in card.detail.items())
            yield ""


def add(node: FakeNode) -> None:
    """Eight GPUs in nvidia-smi, and with four NVSwitches on the PCI bus; their driver."""
    cards = [gpu(index) for index in range(8)]
    node.parts["gpus"] = Rack(cards)
    node.tools["nvidia-smi"] = lambda arguments: rack(node).answer(arguments)
    node.tools["modinfo"] = lambda _: Answer(f"{DRIVER}\n")
    node.profile = replace(
        node.profile, gpus=8, pcie_width=16, pcie_gen=5, nvlinks=18, nvswitches=4
    )
    for card in cards:
        _device(node, pci(card), kind="0x030200", device=b"\xde\x10\x30\x23")
    for bus in _SWITCHES:
        at = f"/sys/bus/pci/devices/0000:{bus}:00.0"
        _device(node, at, kind="0x068000", device=b"\xde\x10\xa3\x22")
    node.files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n"
        "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
    )
    node.links["/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"] = f"libnvidia-ml.so.{DRIVER}"


def rack(node: FakeNode) -> Rack:
    """The GPUs of a node."""
    found = node.parts["gpus"]
    assert isinstance(found, Rack)
    return found


def pci(card: Card) -> str:
    """The folder of a GPU below /sys."""
    return f"/sys/bus/pci/devices/{card.row['pci.bus_id'][4:].lower()}"


def aer(kind: str, count: int) -> str:
    """A file of counts as the kernel writes it."""
    return f"Undefined 0\nDLP {count}\nTLP 0\nTOTAL_ERR_{_AER[kind]} {count}\n"


def _device(node: FakeNode, at: str, kind: str, device: bytes) -> None:
    node.files[f"{at}/vendor"] = "0x10de\n"
    node.files[f"{at}/class"] = f"{kind}\n"
    node.files[f"{at}/config"] = device + bytes(60)
    for name in _AER:
        node.files[f"{at}/aer_dev_{name}"] = aer(name, 0)


def gpu(index: int) -> Card:
    """One fit, idle GPU."""
    row = {
        "index": str(index),
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-0a1b2c{index:02d}-3d4e-5f60-7182-93a4b5c6d7e8",
        "serial": f"16503231{index:05d}",
        "pci.bus_id": f"00000000:{_BUSES[index]}:00.0",
        "driver_version": DRIVER,
        "vbios_version": "96.00.A5.00.01",
        "persistence_mode": "Enabled",
        "pstate": "P0",
        "utilization.gpu": "0",
        "memory.used": "4",
        "pcie.link.gen.current": "5",
        "pcie.link.gen.max": "5",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "temperature.gpu": str(30 + index),
        "temperature.memory": str(38 + index),
        "clocks_event_reasons.active": "0x0000000000000001",
        "clocks_event_reasons_counters.hw_thermal_slowdown": "0",
        "clocks_event_reasons_counters.hw_power_brake_slowdown": "0",
        "ecc.mode.current": "Enabled",
        "ecc.mode.pending": "Enabled",
        "ecc.errors.uncorrected.volatile.total": "0",
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
        "retired_pages.single_bit_ecc.count": "[N/A]",
        "retired_pages.double_bit.count": "[N/A]",
        "retired_pages.pending": "[N/A]",
        "remapped_rows.uncorrectable": "0",
        "remapped_rows.pending": "No",
        "remapped_rows.failure": "No",
        "remapped_rows.histogram.none": "0",
        "mig.mode.current": "Disabled",
        "mig.mode.pending": "Disabled",
        "fabric.state": "Completed",
        "fabric.status": "Success",
        "gpu_recovery_action": "None",
    }
    detail = {
        "Replays Since Reset": "0",
        "Replay Number Rollovers": "0",
        "GPU Current Temp": f"{30 + index} C",
        "GPU T.Limit Temp": f"{57 - index} C",
        "GPU Shutdown T.Limit Temp": "-8 C",
        "GPU Slowdown T.Limit Temp": "-2 C",
        "GPU Max Operating T.Limit Temp": "0 C",
        "GPU Target Temperature": "N/A",
        "Memory Current Temp": f"{38 + index} C",
        "Memory Max Operating Temp": "95 C",
    }
    return Card(row, detail)
