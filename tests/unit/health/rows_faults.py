"""What the driver says in the kernel log, row by row: real faults, consequences, imitations."""

from __future__ import annotations

from healthcheck.policy.faults import RULES
from tests.harness.fake_tools.gpus import rack
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row, both, profile

SERIAL_3 = "1650323100003"
BUS_3 = "0000:86:00"


def xid(number: int, rest: str = "pid='<unknown>', name=<unknown>, something", at: float = 0.0,
        bus: str = "PCI:0000:86:00") -> Edit:  # fmt: skip
    """The driver reports a fault of GPU 3, `at` seconds after an hour of uptime."""
    text = f"NVRM: Xid ({bus}): {number}" + (f", {rest}" if rest else "")
    return lambda node: node.log(text, 3600.0 + at)


def sxid(number: int, rest: str, at: float = 0.0) -> Edit:
    """The driver reports a fault of an NVSwitch."""
    text = f"nvidia-nvswitch3: SXid (PCI:0000:06:00.0): {number:05d}, {rest}"
    return lambda node: node.log(text, 3600.0 + at)


def line(text: str) -> Edit:
    """The kernel says anything."""
    return lambda node: node.log(text, 3600.0)


def program(text: str) -> Edit:
    """A program writes a line into the kernel log."""
    return lambda node: node.user.append((3600.0, text))


def now(action: str) -> Edit:
    """The recovery action of GPU 3 as nvidia-smi shows it."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[3].row["gpu_recovery_action"] = action

    return edit


def unreadable(node: FakeNode) -> None:
    """Only root may read the kernel log, and the journal shows nothing either."""
    node.kernel_readable = False


def broken_journal(node: FakeNode) -> None:
    """The log cannot be read at all."""
    node.files["/proc/uptime"] = "soon"
    node.remove("/proc/stat")


def overwritten(node: FakeNode) -> None:
    """An earlier run has seen the line; the kernel has no room for it any more."""
    node.check("xid")
    node.kernel.clear()


def after_another_boot(node: FakeNode) -> None:
    """The same, before the last boot."""
    overwritten(node)
    node.files["/proc/sys/kernel/random/boot_id"] = "fedcba98-0000-4000-8000-000000000000"


def none_starts(node: FakeNode) -> None:
    """The driver can start no GPU at all."""
    for card in rack(node).cards:
        bus = card.row["pci.bus_id"][4:].lower()
        node.log(f"NVRM: GPU {bus}: RmInitAdapter failed! (0x22:0x56:894)")


FELL_OFF = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
RECOVERY = "GPU recovery action changed from {} to {}"
ASKS_RESET = RECOVERY.format("0x0 (None)", "0x1 (GPU Reset Required)")
ASKS_REBOOT = RECOVERY.format("0x0 (None)", "0x2 (Node Reboot Required)")
ASKS_DRAIN = RECOVERY.format("0x0 (None)", "0x3 (Drain P2P)")
ASKS_BOTH = RECOVERY.format("0x0 (None)", "0x4 (Drain and Reset)")
ASKS_NOTHING = RECOVERY.format("0x1 (GPU Reset Required)", "0x0 (None)")
UNKNOWN = now("[N/A]")  # a driver that does not tell its recovery action
FATAL = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x0"
NONFATAL = "NETIR_LINK_EVT  Nonfatal XC0 i0 Link -1 (0x004505c6 0x0"

SHAPES = [
    Row(name, "xid", "FAIL", edit, rule="xid.79", action="reboot", gpu=SERIAL_3, says="GPU 3")
    for name, edit in {
        "quoted pid": xid(79, FELL_OFF),
        "no pid": xid(79, "GPU has fallen off the bus."),
        "nothing behind": xid(79, ""),
        "an old driver": xid(79, "GPU has fallen off the bus.", bus="0000:86:00"),
        "eight digits": xid(79, FELL_OFF, bus="PCI:00000000:86:00"),
        "a part of a GPU": xid(79, FELL_OFF, bus="PCI:0000:86:00 GPU-I:05 GPU-CI:00"),
        "capitals and a function": xid(79, FELL_OFF, bus="PCI:0000:86:00.0"),
        "colours": line("\x1b[33mNVRM: Xid (PCI:0000:86:00): 79, GPU has fallen\x1b[0m"),
        "a storm": both(*[xid(79, FELL_OFF, at=i / 100) for i in range(500)]),
        "no more in the log": both(xid(79, FELL_OFF), overwritten),
    }.items()
]

IMITATIONS = [
    Row(f"{name} ({check})", check, "PASS", edit)
    for name, edit in {
        "logger": program("NVRM: Xid (PCI:0000:86:00): 79, GPU has fallen off the bus."),
        "a program's SXid": program("nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 20034, Fatal"),
        "a program's lost GPU": program("NVRM: GPU 0000:86:00.0: GPU has fallen off the bus."),
        "in the middle of a line": line("audit: comm=NVRM: Xid (PCI:0000:86:00): 79, x"),
        "a segfault of a program with that name":
            line("NVRM: Xid (PCI:[77]: segfault at 0 ip 00007f error 4 in libc.so.6"),
        "not an address": line("NVRM: Xid (PCI:../../etc): 79, GPU has fallen off the bus."),
        "a pid": line("nvidia-smi[154]: segfault at 79 ip 0"),
        "a test": xid(999, "fake"),
        "the driver's usual lines":
            line("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20"),
        "before the last boot": both(xid(79, FELL_OFF), after_another_boot),
    }.items()
    for check in ("xid", "sxid", "gpu_gone")
]  # fmt: skip

NAMES = [
    Row("a process that calls itself a worse fault", "xid", "WARN",
        xid(31, "pid=77, name=79, GPU has fallen off the bus., Ch 00000010, MMU Fault"),
        rule="xid.31"),
    Row("a process name with the text of another Xid", "xid", "WARN",
        xid(13, "pid=77, name=NVRM: Xid (PCI:0000:97:00): 48, Graphics Exception"),
        rule="xid.13", gpu=SERIAL_3),
    Row("a process that calls itself fatal", "xid", "WARN",
        both(UNKNOWN, xid(149, "pid=7, name=X Fatal, NETIR_LINK_EVT  Nonfatal XC0")),
        rule="xid.149"),
    Row("a name in UTF-8, cut", "xid", "WARN", xid(31, "pid=7, name=ray::W\u00f6rker\ufffd"),
        rule="xid.31"),
]  # fmt: skip

# Every row of the table, when the driver's own recovery action is not known.
NUMBERS = [
    Row(f"Xid {number}", "xid", "FAIL" if rule.action != "none" else "WARN",
        both(UNKNOWN, xid(number)), rule=f"xid.{number}", action=rule.action)
    for number in range(1000)
    if number != 154 and (rule := RULES.get(f"xid.{number}"))
]  # fmt: skip

PINNED = {  # so that nobody changes the table without noticing
    13: "none", 31: "none", 43: "none", 45: "none", 48: "reset", 54: "replace", 62: "reset",
    63: "none", 64: "reset", 74: "reset", 79: "reboot", 92: "none", 94: "none", 95: "reset",
    119: "reboot", 120: "reboot", 140: "reset", 143: "reboot", 171: "reset",
}  # fmt: skip
NUMBERS += [
    Row(f"Xid {number} means {action}", "xid", "WARN" if action == "none" else "FAIL",
        both(UNKNOWN, xid(number, "pid=7, name=x")), action=action)
    for number, action in PINNED.items()
]  # fmt: skip

CAUSES = [
    Row("none", "xid", "PASS"),
    Row("an unknown number", "xid", "WARN", xid(512), rule="xid.512", says="Xid 512"),
    Row("45 after a fault", "xid", "FAIL", both(xid(48, at=0), xid(45, at=1), UNKNOWN),
        rule="xid.48", action="reset"),
    Row("45 just before a program's fault", "xid", "WARN", both(xid(45, at=0), xid(31, at=2)),
        rule="xid.31"),
    Row("45 that names its cause", "xid", "PASS",
        xid(45, "pid=7, name=x, Ch 1 caused by previous Xid 145")),
    Row("45 alone", "xid", "WARN", xid(45), rule="xid.45"),
    Row("43 after a fault of another GPU", "xid", "WARN",
        both(xid(48, at=0, bus="PCI:0000:97:00"), now("None"), xid(43, at=1))),
    Row("the same fault under three processes", "xid", "WARN",
        both(*[xid(31, f"pid={pid}, name=x, Ch 1", at=pid) for pid in (1, 2, 3)]),
        rule="xid.repeated"),
    Row("the same fault under two processes", "xid", "WARN",
        both(*[xid(31, f"pid={pid}, name=x, Ch 1", at=pid) for pid in (1, 2, 2)]),
        rule="xid.31"),
    Row("the driver asks for nothing", "xid", "WARN", xid(48), rule="xid.48",
        says="asks for no reset"),
    Row("the driver asks for a reset", "xid", "FAIL", both(xid(48), now("Reset")),
        rule="xid.48", action="reset"),
    Row("it asks for nothing, but the bus was lost", "xid", "FAIL", xid(79), action="reboot"),
    Row("154 reset", "xid", "FAIL", xid(154, ASKS_RESET), rule="xid.154.reset", action="reset"),
    Row("154 reboot", "xid", "FAIL", xid(154, ASKS_REBOOT), rule="xid.154.reboot",
        action="reboot"),
    Row("154 drain", "xid", "FAIL", xid(154, ASKS_DRAIN), rule="xid.154.drain", action="drain"),
    Row("154 drain and reset", "xid", "FAIL", xid(154, ASKS_BOTH), rule="xid.154.reset",
        action="reset"),
    Row("154 of a newer driver", "xid", "WARN",
        xid(154, RECOVERY.format("0x0 (None)", "0x7 (Pray)")), rule="xid.154"),
    Row("154 withdrawn", "xid", "PASS",
        both(xid(48, at=0), xid(154, ASKS_RESET, at=1), xid(154, ASKS_NOTHING, at=60))),
    Row("154 withdrawn, then again", "xid", "FAIL",
        both(xid(154, ASKS_RESET, at=1), xid(154, ASKS_NOTHING, at=60),
             xid(154, ASKS_RESET, at=90)), rule="xid.154.reset", action="reset"),
    Row("154 withdrawn, then another fault", "xid", "FAIL",
        both(xid(154, ASKS_NOTHING, at=0), xid(79, at=60)), rule="xid.79", action="reboot"),
    Row("154 beats the table", "xid", "FAIL",
        both(xid(119, at=0), xid(154, ASKS_RESET, at=1)), rule="xid.154.reset", action="reset"),
    Row("154 that nobody can read", "xid", "PASS", xid(154, "GPU recovery action changed fro")),
    *[
        Row(f"NVLink 5, fatal {number}", "xid", "FAIL", both(UNKNOWN, xid(number, FATAL)),
            rule=f"xid.{number}.fatal", action="reset")
        for number in range(144, 151)
    ],
    Row("NVLink 5, not fatal", "xid", "WARN", both(UNKNOWN, xid(149, NONFATAL)),
        rule="xid.149.nonfatal"),
    Row("no log", "xid", "UNKNOWN", broken_journal),
    Row("root's log", "xid", "SKIP", unreadable),
    Row("no GPUs", "xid", "SKIP", both(profile(gpus=0), xid(79))),
]  # fmt: skip

SWITCH = [
    Row("none", "sxid", "PASS"),
    Row("fatal", "sxid", "FAIL", sxid(20034, "Fatal, Link 08 LTSSM Fault Up"),
        rule="sxid.20034.fatal", action="reset", says="SXid 20034"),
    Row("not fatal", "sxid", "WARN", sxid(20009, "Non-fatal, Li"), rule="sxid.20009.nonfatal"),
    Row("says neither", "sxid", "WARN", sxid(26006, "SOE HALTED"), rule="sxid.26006"),
    Row("only what belongs to the line before", "sxid", "PASS",
        both(sxid(20034, "Severity 1 Engine instance 08 Sub-engine instance 00"),
             sxid(20034, "Data {0x00000001, 0x00000001}"))),
    Row("after a GPU fell off the bus", "sxid", "PASS",
        both(xid(79, at=0), sxid(20034, "Fatal, Link 08 LTSSM Fault Up", at=29))),
    Row("long after a GPU fell off the bus", "sxid", "FAIL",
        both(xid(79, at=0), sxid(20034, "Fatal, Link 08 LTSSM Fault Up", at=31)),
        action="reset"),
    Row("another fault after a GPU fell off", "sxid", "FAIL",
        both(xid(79, at=0), sxid(22003, "Fatal, Link 08 x", at=1)), action="reset"),
    Row("no log", "sxid", "UNKNOWN", broken_journal),
    Row("root's log", "sxid", "SKIP", unreadable),
]  # fmt: skip

GONE = [
    Row("none", "gpu_gone", "PASS"),
    *[
        Row(name, "gpu_gone", "FAIL", line(text), rule="gpu_gone", action="reboot", says="fell off")
        for name, text in {
            "in one line": "NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.",
            "in three lines": "NVRM: The NVIDIA GPU 0000:86:00.0\\x0aNVRM: (PCI ID: 10de:2330) "
            "installed in this system has\\x0aNVRM: fallen off the bus and is not responding.",
            "the third line": "NVRM: fallen off the bus and is not responding to commands.",
        }.items()
    ],
    Row("which GPU", "gpu_gone", "FAIL", action="reboot", gpu=SERIAL_3,
        edit=line("NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.")),
    Row("cannot be started", "gpu_gone", "FAIL", rule="gpu_gone.init", action="reboot",
        edit=line("NVRM: GPU 0000:86:00.0: RmInitAdapter failed! (0x22:0x56:894)")),
    Row("probe failed", "gpu_gone", "FAIL", rule="gpu_gone.init", action="reboot",
        edit=line("nvidia: probe of 0000:86:00.0 failed with error -1")),
    Row("probe failed, newer kernel", "gpu_gone", "FAIL", rule="gpu_gone.init", action="reboot",
        edit=line("nvidia 0000:86:00.0: probe with driver nvidia failed with error -1")),
    Row("none can be started", "gpu_gone", "FAIL", rule="gpu_gone.all", action="reboot",
        edit=none_starts),
    Row("GSP", "gpu_gone", "FAIL", rule="gpu_gone.gsp", action="reboot",
        edit=line("NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:86:00")),
    Row("no log", "gpu_gone", "UNKNOWN", broken_journal),
    Row("root's log", "gpu_gone", "SKIP", unreadable),
]  # fmt: skip

ROWS = [*SHAPES, *IMITATIONS, *NAMES, *NUMBERS, *CAUSES, *SWITCH, *GONE]
