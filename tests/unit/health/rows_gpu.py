"""GPUs, row by row: does the driver answer, are all there, what do they say about themselves?"""

from __future__ import annotations

from dataclasses import replace

from tests.harness.fake_tools.gpus import pci, rack
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row, both, profile

HOT = "clocks_event_reasons_counters.hw_thermal_slowdown"
ECC = "ecc.errors.uncorrected.volatile.total"
SRAM = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"
REASONS = "clocks_event_reasons.active"
EMPTY = "remapped_rows.histogram.none"
ROWS_REPLACED = "remapped_rows.uncorrectable"
SINGLE, DOUBLE = "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count"
PAGES = "retired_pages.pending"
SERIAL_3 = "1650323100003"


def on(index: int, **values: str) -> Edit:
    """One GPU shows other values; two underscores in a name stand for a dot."""

    def edit(node: FakeNode) -> None:
        row = rack(node).cards[index].row
        row.update({name.replace("__", "."): value for name, value in values.items()})

    return edit


def field(name: str, value: str, index: int = 3) -> Edit:
    """One GPU shows another value."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[index].row[name] = value

    return edit


def every(**values: str) -> Edit:
    """All GPUs show other values."""

    def edit(node: FakeNode) -> None:
        for card in rack(node).cards:
            card.row.update({name.replace("__", "."): value for name, value in values.items()})

    return edit


def detail(name: str, value: str, index: int = 3) -> Edit:
    """One GPU shows another number in `nvidia-smi -q`."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[index].detail[name] = value

    return edit


def old_driver(*fields: str) -> Edit:
    """The driver does not know these fields, and refuses a query that has one of them."""
    return lambda node: rack(node).unknown.update(fields)


def silent(node: FakeNode) -> None:
    """nvidia-smi never answers."""
    node.say("nvidia-smi", hangs=True)


def quiet(node: FakeNode) -> None:
    """nvidia-smi ends well, and says nothing."""
    node.say("nvidia-smi")


def gone(index: int = 3) -> Edit:
    """One GPU is not shown any more."""
    return lambda node: rack(node).cards.pop(index)


def only(count: int) -> Edit:
    """nvidia-smi shows the first ones only."""

    def edit(node: FakeNode) -> None:
        del rack(node).cards[count:]

    return edit


def given(count: str) -> Edit:
    """Slurm gave so many GPUs of the node to the job in which we run."""
    return lambda node: node.environ.update({"SLURM_GPUS_ON_NODE": count})


def off_bus(node: FakeNode) -> None:
    """Nor is it on the PCI bus."""
    node.remove(pci(rack(node).cards.pop(3)))


def cut(node: FakeNode) -> None:
    """The answer to the query ends in the middle of the last row."""
    node.change("nvidia-smi", lambda a: replace(a, out=a.out[:-20]), words="--query-gpu")


def ends(rc: int, out: str = "", err: str = "") -> Edit:
    """nvidia-smi ends so."""
    return lambda node: node.say("nvidia-smi", out, rc=rc, err=err)


def no_program(node: FakeNode) -> None:
    """There is no driver."""
    del node.tools["nvidia-smi"]


def hung_before(seconds: float) -> Edit:
    """An earlier run found it hanging, and this one does."""

    def edit(node: FakeNode) -> None:
        silent(node)
        node.check("nvidia_smi", limit_s=45)
        node.now += seconds

    return edit


def stuck(node: FakeNode) -> None:
    """It hangs so that it cannot even be killed."""
    node.unkillable.add("nvidia-smi")
    silent(node)


def lost_on_stderr(node: FakeNode) -> None:
    """As the driver says it when it has lost a GPU."""
    text = "Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost. Reboot\n"
    node.change("nvidia-smi", lambda a: replace(a, err=text))


def as_slurm(gres: str) -> Edit:
    """Slurm gives the node these GPUs."""
    return lambda node: node.say("scontrol", f"NodeName=n3 Arch=x86_64\n   Gres={gres}\n")


def alone(node: FakeNode) -> None:
    """Neither Slurm nor the PCI bus knows of GPUs."""
    as_slurm("(null)")(node)
    node.remove("/sys/bus/pci")


def unknown_type(node: FakeNode) -> None:
    """The profile expects nothing."""
    profile(gpus=None, nvlinks=None, nvswitches=None, pcie_gen=None, pcie_width=None)(node)


def slowed(first_us: int, then_us: int) -> Edit:
    """The clock of heat stands so in a run 10 minutes ago, and so now."""

    def edit(node: FakeNode) -> None:
        field(HOT, str(first_us))(node)
        node.check("gpu_throttle")
        node.now += 600
        field(HOT, str(then_us))(node)

    return edit


SMI = [
    Row("answers", "nvidia_smi", "PASS"),
    Row("hangs", "nvidia_smi", "UNKNOWN", silent),
    Row("hangs, in a prolog", "nvidia_smi", "UNKNOWN", silent, when="prolog"),
    Row("hangs, and somebody waits", "nvidia_smi", "FAIL", silent, rule="nvidia_smi.slow",
        when="gate"),
    Row("hangs after a job has failed", "nvidia_smi", "FAIL", silent, rule="nvidia_smi.hung",
        action="reboot", when="suspect"),
    Row("hung 14 min ago, too", "nvidia_smi", "UNKNOWN", hung_before(840)),
    Row("hung 15 min ago, too", "nvidia_smi", "FAIL", hung_before(900), rule="nvidia_smi.hung",
        action="reboot", says="since 15 min"),
    Row("cannot be killed", "nvidia_smi", "FAIL", stuck, rule="nvidia_smi.hung", action="reboot"),
    Row("says nothing", "nvidia_smi", "UNKNOWN", quiet),
    Row("our own mistake", "nvidia_smi", "UNKNOWN", ends(2, "bad argument")),
    Row("no permission", "nvidia_smi", "UNKNOWN", ends(4)),
    Row("an unknown end", "nvidia_smi", "UNKNOWN", ends(255, "\x1b[31m\r\n,,,,\n" * 9)),
    Row("power cable", "nvidia_smi", "FAIL", ends(8), action="replace"),
    Row("infoROM", "nvidia_smi", "FAIL", ends(14), action="replace", says="infoROM"),
    Row("fell off the bus", "nvidia_smi", "FAIL", ends(15), rule="nvidia_smi.fell_off",
        action="reboot"),
    Row("driver not loaded", "nvidia_smi", "FAIL", ends(9), rule="nvidia_smi", action="reboot"),
    Row("NVML is missing", "nvidia_smi", "FAIL", ends(12), rule="nvidia_smi", action="reboot"),
    Row("library differs", "nvidia_smi", "FAIL", ends(18), rule="nvidia_smi", action="reboot"),
    Row("is not installed", "nvidia_smi", "FAIL", no_program, rule="nvidia_smi.missing",
        action="drain"),
    Row("no GPUs by profile", "nvidia_smi", "SKIP", both(profile(gpus=0), silent)),
    Row("no driver, and nobody expects one", "nvidia_smi", "SKIP",
        both(unknown_type, no_program, alone)),
]  # fmt: skip

COUNT = [
    Row("all there", "gpu_count", "PASS", says="8 of 8"),
    Row("the driver lost one", "gpu_count", "FAIL", gone(), rule="gpu_count.driver",
        action="reboot", says="7 of 8"),
    Row("one is gone from the bus, too", "gpu_count", "FAIL", off_bus, rule="gpu_count",
        action="replace"),
    Row("none at all", "gpu_count", "FAIL", lambda n: rack(n).cards.clear(), action="reboot",
        says="0 of 8"),
    Row("one more", "gpu_count", "WARN", profile(gpus=7), rule="gpu_count.more"),
    Row("Slurm gives fewer", "gpu_count", "WARN", as_slurm("gpu:h100:4(S:0-1)"),
        rule="gpu_count.gres"),
    Row("Slurm gives all", "gpu_count", "PASS", as_slurm("gpu:h100:8(S:0-1),shard:64")),
    Row("the answer is cut", "gpu_count", "UNKNOWN", cut, says="8 when asked again"),
    Row("no answer", "gpu_count", "UNKNOWN", silent),
    Row("says nothing", "gpu_count", "UNKNOWN", quiet),
    Row("unknown type, all there", "gpu_count", "PASS", unknown_type),
    Row("unknown type, fewer than on the bus", "gpu_count", "FAIL", both(unknown_type, gone()),
        rule="gpu_count.driver", action="reboot"),
    Row("unknown type, fewer than Slurm gives", "gpu_count", "FAIL",
        both(unknown_type, off_bus, as_slurm("gpu:8")), rule="gpu_count", action="replace"),
    Row("unknown type, nobody else knows", "gpu_count", "PASS",
        both(unknown_type, alone), says="nothing to compare"),
    Row("a job has four of them", "gpu_count", "PASS", both(given("4"), only(4)), when="gate",
        says="4 of 4"),
    Row("a job has four of them, and sees three", "gpu_count", "FAIL", both(given("4"), only(3)),
        when="gate", action="reboot", says="3 of 4"),
    Row("a job has four of them, and sees all", "gpu_count", "PASS", given("4"), when="gate"),
    Row("a job has four, and its node has lost one", "gpu_count", "FAIL",
        both(given("4"), only(7)), action="reboot", says="7 of 8"),
    Row("a job was given more than there are", "gpu_count", "FAIL", both(given("9"), only(7)),
        when="gate", action="reboot", says="7 of 8"),
    Row("strange", "gpu_count", "PASS", given("four"), when="gate", says="8 of 8"),
    Row("unknown type, a job has four", "gpu_count", "FAIL",
        both(unknown_type, alone, given("4"), only(3)), when="gate", action="replace"),
    Row("an old driver", "gpu_count", "PASS", old_driver("gpu_recovery_action", "fabric.state")),
]  # fmt: skip

LOST = [
    Row("none lost", "gpu_lost", "PASS"),
    Row("in a field", "gpu_lost", "FAIL", on(3, serial="[GPU is lost]"), action="reboot"),
    Row("on stderr", "gpu_lost", "FAIL", lost_on_stderr, action="reboot", gpu="0000:86:00"),
    Row("no devices", "gpu_lost", "FAIL", lambda n: rack(n).cards.clear(), action="reboot"),
    Row("ERR!", "gpu_lost", "FAIL", field(ECC, "ERR!"), action="reboot"),
    Row("unknown error", "gpu_lost", "FAIL", field(ECC, "[Unknown Error]"), action="reboot"),
    Row("no answer", "gpu_lost", "UNKNOWN", silent),
    Row("the answer is cut", "gpu_lost", "UNKNOWN", cut),
    Row("not asked well", "gpu_lost", "UNKNOWN", ends(2)),
]

MEMORY = [
    Row("no errors", "gpu_ecc", "PASS"),
    Row("one error", "gpu_ecc", "FAIL", field(ECC, "1"), action="reset", says="1 uncorr",
        gpu=SERIAL_3),
    Row("no number", "gpu_ecc", "UNKNOWN", field(ECC, "many")),
    Row("no answer", "gpu_ecc", "UNKNOWN", silent),
    Row("the answer is cut", "gpu_ecc", "UNKNOWN", cut, says="7 of 8"),
    Row("no ECC", "gpu_ecc", "SKIP", every(ecc__errors__uncorrected__volatile__total="[N/A]")),
    Row("on", "gpu_ecc_mode", "PASS"),
    Row("off", "gpu_ecc_mode", "WARN", on(3, ecc__mode__current="Disabled"), says="has ECC off"),
    Row("soon off", "gpu_ecc_mode", "WARN", on(3, ecc__mode__pending="Disabled"), says="will"),
    Row("off, and may be", "gpu_ecc_mode", "SKIP",
        both(on(3, ecc__mode__current="Disabled"), profile(ecc=False))),
    Row("strange", "gpu_ecc_mode", "UNKNOWN", on(3, ecc__mode__current="perhaps")),
    Row("below", "gpu_sram", "PASS"),
    Row("above", "gpu_sram", "FAIL", field(SRAM, "Yes"), action="replace", gpu=SERIAL_3),
    Row("strange", "gpu_sram", "UNKNOWN", field(SRAM, "?")),
    Row("an old driver", "gpu_sram", "SKIP", old_driver(SRAM), says="without ecc."),
    Row("nothing waits", "gpu_row_remap", "PASS"),
    Row("one waits", "gpu_row_remap", "FAIL", on(3, remapped_rows__pending="Yes"),
        rule="gpu_row_remap", action="reset", gpu=SERIAL_3),
    Row("as a number", "gpu_row_remap", "FAIL", on(3, remapped_rows__pending="1"), action="reset"),
    Row("it failed", "gpu_row_remap", "FAIL", on(3, remapped_rows__failure="Yes"),
        rule="gpu_row_remap.failed", action="replace"),
    Row("strange", "gpu_row_remap", "UNKNOWN", on(3, remapped_rows__pending="Pending")),
    Row("no answer", "gpu_row_remap", "UNKNOWN", silent),
    Row("rows are left", "gpu_row_reserve", "PASS"),
    Row("a bank has none", "gpu_row_reserve", "WARN", field(EMPTY, "1"), says="in 1 banks"),
    Row("511 replaced", "gpu_row_reserve", "PASS", field(ROWS_REPLACED, "511")),
    Row("512 replaced", "gpu_row_reserve", "FAIL", field(ROWS_REPLACED, "512"), action="replace"),
    Row("strange", "gpu_row_reserve", "UNKNOWN", field(EMPTY, "few")),
    Row("rows instead of pages", "gpu_pages", "SKIP"),
    Row("few", "gpu_pages", "PASS", every(**{SINGLE: "3", DOUBLE: "1", PAGES: "No"})),
    Row("one waits", "gpu_pages", "FAIL", on(3, **{SINGLE: "3", DOUBLE: "1", PAGES: "Yes"}),
        rule="gpu_pages", action="reboot"),
    Row("60", "gpu_pages", "WARN", on(3, **{SINGLE: "50", DOUBLE: "10", PAGES: "No"})),
    Row("64", "gpu_pages", "FAIL", on(3, **{SINGLE: "50", DOUBLE: "14", PAGES: "No"}),
        rule="gpu_pages.many", action="replace"),
    Row("strange", "gpu_pages", "UNKNOWN", on(3, **{SINGLE: "3", DOUBLE: "1", PAGES: "?"})),
]  # fmt: skip

STATE = [
    Row("nothing is asked for", "gpu_recovery", "PASS"),
    Row("reset", "gpu_recovery", "FAIL", on(3, gpu_recovery_action="Reset"),
        rule="gpu_recovery.reset", action="reset", gpu=SERIAL_3),
    Row("reboot", "gpu_recovery", "FAIL", on(3, gpu_recovery_action="Reboot"),
        rule="gpu_recovery.reboot", action="reboot"),
    Row("drain", "gpu_recovery", "FAIL", on(3, gpu_recovery_action="Drain P2P"),
        rule="gpu_recovery.drain", action="drain"),
    Row("drain and reset", "gpu_recovery", "FAIL", on(3, gpu_recovery_action="Drain and Reset"),
        rule="gpu_recovery.reset", action="reset"),
    Row("strange", "gpu_recovery", "UNKNOWN", on(3, gpu_recovery_action="Pray")),
    Row("an old driver", "gpu_recovery", "SKIP", old_driver("gpu_recovery_action")),
    Row("on", "gpu_persistence", "PASS"),
    Row("off", "gpu_persistence", "WARN", on(3, persistence_mode="Disabled")),
    Row("strange", "gpu_persistence", "UNKNOWN", on(3, persistence_mode="")),
    Row("off", "gpu_mig", "PASS", says="MIG is off"),
    Row("on for all", "gpu_mig", "PASS",
        every(mig__mode__current="Enabled", mig__mode__pending="Enabled"), says="MIG is on"),
    Row("on for all, but should not", "gpu_mig", "WARN",
        both(every(mig__mode__current="Enabled", mig__mode__pending="Enabled"),
             profile(mig=False))),
    Row("on for one", "gpu_mig", "WARN", on(3, mig__mode__current="Enabled"), says="MIG on"),
    Row("changes", "gpu_mig", "WARN", on(3, mig__mode__pending="Enabled"), says="waiting"),
    Row("strange", "gpu_mig", "UNKNOWN", on(3, mig__mode__current="half")),
    Row("set up", "gpu_fabric", "PASS"),
    Row("in progress", "gpu_fabric", "FAIL", on(3, fabric__state="In Progress"), action="reboot"),
    Row("in progress after a boot", "gpu_fabric", "UNKNOWN",
        both(on(3, fabric__state="In Progress"), lambda node: node.booted(120))),
    Row("too little", "gpu_fabric", "FAIL", on(3, fabric__status="Insufficient Resources"),
        action="reboot"),
    Row("an old driver", "gpu_fabric", "SKIP", old_driver("fabric.state", "fabric.status")),
    Row("none listed", "gpu_versions", "PASS"),
    Row("listed", "gpu_versions", "PASS",
        profile(drivers=["570.133.20"], vbios=["96.00.A5.00.01", "96.00.A5.00.02"])),
    Row("another driver", "gpu_versions", "WARN", profile(drivers=["570.86.15"]), says="driver"),
    Row("another VBIOS", "gpu_versions", "WARN", profile(vbios=["96.00.A5.00.02"]), says="VBIOS"),
    Row("two VBIOS", "gpu_versions", "WARN", on(3, vbios_version="96.00.89.00.01")),
    Row("strange", "gpu_versions", "UNKNOWN", on(3, vbios_version="?")),
    Row("idle", "gpu_throttle", "PASS"),
    Row("hot", "gpu_throttle", "WARN", field(REASONS, "0x0000000000000040"), says="thermal"),
    Row("power", "gpu_throttle", "WARN", field(REASONS, "0x0000000000000088"), says="brake"),
    Row("power cap is normal", "gpu_throttle", "PASS", field(REASONS, "0x0000000000000004")),
    Row("hot for long", "gpu_throttle", "FAIL", slowed(0, 600_000_001),
        rule="gpu_throttle.long", action="drain"),
    Row("hot, not for long", "gpu_throttle", "PASS", slowed(0, 600_000_000)),
    Row("was hot before we looked", "gpu_throttle", "PASS", slowed(900_000_000, 900_000_000)),
    Row("strange", "gpu_throttle", "UNKNOWN", field(REASONS, "0xg")),
    Row("cool", "gpu_temperature", "PASS"),
    Row("warm", "gpu_temperature", "WARN", detail("GPU T.Limit Temp", "-1 C"), says="operating"),
    Row("slows down", "gpu_temperature", "WARN",
        both(detail("GPU T.Limit Temp", "-2 C"), on(3, utilization__gpu="99"))),
    Row("slows down without work", "gpu_temperature", "FAIL", detail("GPU T.Limit Temp", "-3 C"),
        rule="gpu_temperature.idle", action="drain"),
    Row("hot memory", "gpu_temperature", "WARN", detail("Memory Current Temp", "96 C"),
        says="memory hotter"),
    Row("no answer", "gpu_temperature", "UNKNOWN",
        lambda node: node.say("nvidia-smi", words="-q", rc=255)),
]  # fmt: skip


def degrees(now: int) -> Edit:
    """An A100 names its limits in degrees."""

    def edit(node: FakeNode) -> None:
        for card in rack(node).cards:
            for name in [name for name in card.detail if "T.Limit" in name]:
                card.detail[name] = "N/A"
            card.detail.update({"GPU Current Temp": f"{now} C", "GPU Slowdown Temp": "89 C"})
            card.detail["GPU Max Operating Temp"] = "85 C"

    return edit


def no_limits(node: FakeNode) -> None:
    for card in rack(node).cards:
        card.detail = dict.fromkeys(card.detail, "N/A")


STATE += [
    Row("cool, in degrees", "gpu_temperature", "PASS", degrees(85)),
    Row("warm, in degrees", "gpu_temperature", "WARN", degrees(86)),
    Row("hot, in degrees", "gpu_temperature", "FAIL", degrees(89), action="drain"),
    Row("no limits", "gpu_temperature", "SKIP", no_limits),
]

DRIVER = [
    Row("one version", "driver_match", "PASS"),
    Row("updated", "driver_match", "FAIL",
        lambda node: node.links.update(
            {"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "libnvidia-ml.so.570.148.08"}),
        action="reboot"),
    Row("no library", "driver_match", "SKIP", lambda node: node.links.clear()),
    Row("not loaded", "driver_match", "UNKNOWN", lambda node: node.remove("/proc/driver")),
    Row("nothing waits", "driver_update", "PASS"),
    Row("an update waits", "driver_update", "WARN",
        lambda node: node.say("modinfo", "570.148.08\n")),
    Row("modinfo fails", "driver_update", "UNKNOWN", lambda node: node.say("modinfo", rc=1)),
    Row("modinfo is cut", "driver_update", "UNKNOWN", lambda node: node.say("modinfo", "570.133")),
]  # fmt: skip

ROWS = [*SMI, *COUNT, *LOST, *MEMORY, *STATE, *DRIVER]
