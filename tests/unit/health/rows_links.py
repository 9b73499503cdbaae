"""PCIe, NVLink and NVSwitch, row by row."""

from __future__ import annotations

from tests.harness.fake_tools.gpus import aer, pci, rack
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row, both, profile

SERIAL_3 = "1650323100003"
SWITCH = "/sys/bus/pci/devices/0000:06:00.0"
DEAD = b"\xff" * 64


def card(index: int, **values: str) -> Edit:
    """One GPU shows other values; two underscores in a name stand for a dot."""

    def edit(node: FakeNode) -> None:
        row = rack(node).cards[index].row
        row.update({name.replace("__", "."): value for name, value in values.items()})

    return edit


def sysfs(name: str, content: object, index: int = 3) -> Edit:
    """A file of one GPU below /sys."""

    def edit(node: FakeNode) -> None:
        node.files[f"{pci(rack(node).cards[index])}/{name}"] = content

    return edit


def no_bus(node: FakeNode) -> None:
    """/sys shows nothing."""
    node.remove("/sys/bus/pci")


def without_aer(node: FakeNode) -> None:
    """The kernel does not count PCIe errors."""
    for path in [path for path in node.files if "/aer_dev_" in path]:
        del node.files[path]


def one_without_aer(node: FakeNode) -> None:
    """The kernel does not count those of one GPU."""
    for kind in ("fatal", "nonfatal", "correctable"):
        node.remove(f"{pci(rack(node).cards[3])}/aer_dev_{kind}")


def no_counters(node: FakeNode) -> None:
    """nvidia-smi names the GPUs, and no counters of their links."""
    for one in rack(node).cards:
        one.link_errors.clear()


def grew(check: str, edit: Edit, seconds: float = 300) -> Edit:
    """It was well in an earlier run."""

    def both_runs(node: FakeNode) -> None:
        node.check(check)
        node.now += seconds
        edit(node)

    return both_runs


def replays(count: int) -> Edit:
    """One GPU has sent so many packets again."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[3].detail["Replays Since Reset"] = str(count)

    return edit


def links(up: int, index: int = 3) -> Edit:
    """So many links of one GPU are up."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[index].links = [number < up for number in range(18)]

    return edit


def link_errors(kind: str, count: int) -> Edit:
    """So many errors on every link of one GPU."""

    def edit(node: FakeNode) -> None:
        one = rack(node).cards[3]
        one.links = one.links[:1]
        one.link_errors[kind] = count

    return edit


def all_inactive(node: FakeNode) -> None:
    """As nvidia-smi says it when no link at all is up."""
    text = "NVML: Unable to retrieve NVLink information as all links are inActive"
    lines = [f"{one.head}\n{text}\n" for one in rack(node).cards]
    node.say("nvidia-smi", "".join(lines), words="nvlink -s")


def says(words: str, out: str = "", rc: int = 0) -> Edit:
    """nvidia-smi answers this question so."""
    return lambda node: node.say("nvidia-smi", out, words=words, rc=rc)


def no_links(node: FakeNode) -> None:
    """GPUs without NVLink: only their names are printed."""
    for one in rack(node).cards:
        one.links = []


def listed_short(node: FakeNode) -> None:
    """The answer stops between two links of the last GPU."""
    whole = rack(node).answer(["nvlink", "-s"]).out
    node.say("nvidia-smi", "\n".join(whole.split("\n")[:-4]) + "\n", words="nvlink -s")


def on_for_mig(node: FakeNode) -> None:
    """With MIG on, links are off."""
    for one in rack(node).cards:
        one.row["mig.mode.current"] = "Enabled"
        one.links = [False] * 18


ANY = profile(nvlinks=None)
PCI = [
    Row("all answer", "gpu_pci", "PASS", says="8 GPUs"),
    Row("one is dead", "gpu_pci", "FAIL", sysfs("config", DEAD), action="reboot",
        gpu="0000:86:00.0"),
    Row("one is not readable", "gpu_pci", "UNKNOWN", sysfs("config", None)),
    Row("one is cut", "gpu_pci", "UNKNOWN", sysfs("config", b"\xde\x10")),
    Row("no bus", "gpu_pci", "UNKNOWN", no_bus),
    Row("stand-ins", "gpu_pci", "SKIP", both(no_bus, profile(gpus_on_pci=False))),
    Row("all there", "nvswitch_count", "PASS"),
    Row("one is gone", "nvswitch_count", "FAIL", lambda node: node.remove(SWITCH),
        action="reboot", says="3 of 4"),
    Row("one is dead", "nvswitch_count", "FAIL",
        lambda node: node.files.update({f"{SWITCH}/config": DEAD}), action="reboot", says="dead"),
    Row("no bus", "nvswitch_count", "UNKNOWN", no_bus),
    Row("one has no readable class", "nvswitch_count", "UNKNOWN",
        lambda node: node.files.update({f"{SWITCH}/class": None})),
    Row("one has no readable vendor", "nvswitch_count", "UNKNOWN",
        lambda node: node.files.update({f"{SWITCH}/vendor": ""})),
    Row("none expected", "nvswitch_count", "SKIP", profile(nvswitches=None)),
    Row("all lanes", "gpu_pcie_link", "PASS"),
    Row("half of the lanes", "gpu_pcie_link", "FAIL", card(3, pcie__link__width__current="8"),
        action="drain", says="8 of 16", gpu=SERIAL_3),
    Row("the slot has half of them", "gpu_pcie_link", "FAIL",
        card(3, pcie__link__width__current="8", pcie__link__width__max="8"), action="drain"),
    Row("as wide as it can, unknown type", "gpu_pcie_link", "PASS",
        both(profile(pcie_width=None),
             card(3, pcie__link__width__current="8", pcie__link__width__max="8"))),
    Row("slow at rest", "gpu_pcie_link", "PASS",
        card(3, pcie__link__gen__current="1", pstate="P8")),
    Row("slow at work", "gpu_pcie_link", "WARN", card(3, pcie__link__gen__current="3"),
        says="3 of 5"),
    Row("can never be fast", "gpu_pcie_link", "FAIL",
        card(3, pcie__link__gen__current="4", pcie__link__gen__max="4"), action="drain"),
    Row("strange", "gpu_pcie_link", "UNKNOWN", card(3, pcie__link__width__current="x")),
    Row("no errors", "gpu_pcie_errors", "PASS"),
    Row("a fatal one", "gpu_pcie_errors", "FAIL", sysfs("aer_dev_fatal", aer("fatal", 1)),
        action="drain", gpu="0000:86:00.0"),
    Row("other ones, old", "gpu_pcie_errors", "PASS",
        both(sysfs("aer_dev_nonfatal", aer("nonfatal", 9)),
             sysfs("aer_dev_correctable", aer("correctable", 9999)))),
    Row("other ones, new", "gpu_pcie_errors", "WARN",
        grew("gpu_pcie_errors", sysfs("aer_dev_nonfatal", aer("nonfatal", 1)))),
    Row("many corrected", "gpu_pcie_errors", "WARN",
        grew("gpu_pcie_errors", sysfs("aer_dev_correctable", aer("correctable", 301)))),
    Row("some corrected", "gpu_pcie_errors", "PASS",
        grew("gpu_pcie_errors", sysfs("aer_dev_correctable", aer("correctable", 300)))),
    Row("not counted", "gpu_pcie_errors", "SKIP", without_aer),
    Row("one is not counted", "gpu_pcie_errors", "UNKNOWN",
        one_without_aer),
    Row("no bus", "gpu_pcie_errors", "UNKNOWN", no_bus),
    Row("few", "gpu_pcie_replays", "PASS"),
    Row("many, long ago", "gpu_pcie_replays", "PASS", replays(999_999)),
    Row("as expected", "gpu_pcie_replays", "PASS", grew("gpu_pcie_replays", replays(307))),
    Row("many", "gpu_pcie_replays", "WARN", grew("gpu_pcie_replays", replays(308)), says="308"),
    Row("many for an older generation", "gpu_pcie_replays", "WARN",
        both(card(3, pcie__link__gen__max="4"), grew("gpu_pcie_replays", replays(154)))),
    Row("no answer", "gpu_pcie_replays", "UNKNOWN", says("-q", rc=255)),
    Row("not counted", "gpu_pcie_replays", "UNKNOWN",
        lambda node: rack(node).cards[3].detail.pop("Replays Since Reset")),
]  # fmt: skip

NVLINK = [
    Row("all up", "nvlink_links", "PASS", says="18 NVLinks"),
    Row("one is down", "nvlink_links", "FAIL", links(17), action="reset", says="17 of 18",
        gpu=SERIAL_3),
    Row("all of one are down", "nvlink_links", "FAIL", links(0), action="reset"),
    Row("all are down", "nvlink_links", "FAIL", all_inactive, action="reset", says="0 of 18"),
    Row("unknown type, all alike", "nvlink_links", "PASS", ANY),
    Row("unknown type, one differs", "nvlink_links", "WARN", both(ANY, links(17))),
    Row("unknown type, none", "nvlink_links", "SKIP", both(ANY, no_links)),
    Row("unknown type, cards without a bridge", "nvlink_links", "SKIP", both(ANY, all_inactive)),
    Row("none by profile", "nvlink_links", "SKIP", both(profile(nvlinks=0), says("nvlink -s"))),
    Row("with MIG", "nvlink_links", "SKIP", on_for_mig),
    Row("no answer", "nvlink_links", "UNKNOWN", says("nvlink -s", rc=255)),
    Row("says nothing", "nvlink_links", "UNKNOWN", says("nvlink -s")),
    Row("is cut", "nvlink_links", "UNKNOWN", listed_short),
    Row("one GPU is not shown", "nvlink_links", "UNKNOWN",
        lambda node: rack(node).cards.pop()),
    Row("no errors", "nvlink_errors", "PASS"),
    Row("old errors", "nvlink_errors", "PASS", link_errors("Replay", 7)),
    Row("new errors", "nvlink_errors", "WARN",
        grew("nvlink_errors", link_errors("Replay", 1)), says="1 NVLink errors"),
    Row("it comes back twice", "nvlink_errors", "WARN",
        grew("nvlink_errors", link_errors("Recovery", 2))),
    Row("it comes back again and again", "nvlink_errors", "FAIL",
        grew("nvlink_errors", link_errors("Recovery", 3)), action="drain", gpu=SERIAL_3),
    Row("long ago", "nvlink_errors", "PASS",
        both(grew("nvlink_errors", link_errors("Recovery", 3)),
             grew("nvlink_errors", lambda _: None, 3 * 3600 + 1))),
    Row("no answer", "nvlink_errors", "UNKNOWN", says("nvlink -e", rc=255)),
    Row("says nothing", "nvlink_errors", "UNKNOWN", says("nvlink -e")),
    Row("no counters", "nvlink_errors", "UNKNOWN",
        no_counters),
    Row("unknown type, no counters", "nvlink_errors", "SKIP",
        both(ANY, no_counters)),
    Row("none by profile", "nvlink_errors", "SKIP", both(profile(nvlinks=0), says("nvlink -e"))),
    Row("one GPU is not shown", "nvlink_errors", "UNKNOWN",
        lambda node: rack(node).cards.pop()),
]  # fmt: skip

ROWS = [*PCI, *NVLINK]
