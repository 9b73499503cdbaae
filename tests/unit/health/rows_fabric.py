"""EFA and InfiniBand, row by row."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.harness.fake_tools import efa
from tests.harness.fake_tools.node import BOOT_ID, FakeNode
from tests.harness.fake_tools.rows import Edit, Row

IB = "/sys/class/infiniband"


def file(path: str, content: object) -> Edit:
    """A file has another content; None: it cannot be read."""
    return lambda node: node.files.__setitem__(path, content)


def mellanox(*edits: Edit, count: int = 9, **keys: object) -> Edit:
    """Not EFA but nine InfiniBand ports, eight of which are used; then the edits."""

    def edit(node: FakeNode) -> None:
        efa.take(node, *range(efa.COUNT))
        node.profile = replace(node.profile, efa_devices=None, ib_ports=8, ib_rate_gbit_s=400.0)
        node.profile = replace(node.profile, **keys)  # type: ignore[arg-type]
        node.files["/sys/class/net/lo/mtu"] = "65536"
        for index in range(count):
            port = f"{IB}/mlx5_{index}/ports/1"
            node.links[f"{IB}/mlx5_{index}/device/driver"] = "../../../../bus/pci/drivers/mlx5_core"
            node.files[f"{port}/link_layer"] = "InfiniBand"
            node.files[f"{port}/state"] = "4: ACTIVE"
            node.files[f"{port}/phys_state"] = "5: LinkUp"
            node.files[f"{port}/rate"] = "400 Gb/sec (4X NDR)"
            for name in ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors"):
                node.files[f"{port}/counters/{name}"] = "2"
        for one in edits:
            one(node)

    return edit


def down(*indices: int, logical: str = "1: DOWN", phys: str = "3: Disabled") -> Edit:
    """These ports are down."""

    def edit(node: FakeNode) -> None:
        for index in indices:
            node.files[f"{IB}/mlx5_{index}/ports/1/state"] = logical
            node.files[f"{IB}/mlx5_{index}/ports/1/phys_state"] = phys

    return edit


def remembered(since_s: float | None = None, **points: int) -> Edit:
    """What an earlier run saw an hour ago, and since when ports are down."""

    def edit(node: FakeNode) -> None:
        history = {
            "boot_id": BOOT_ID,
            "points": {
                f"ib.mlx5_0/1.{name}": [[node.now - 3600, value]] for name, value in points.items()
            },
            "since": {} if since_s is None else {"ib_state.down": node.now - since_s},
        }
        node.memory["counters.json"] = json.dumps(history)

    return edit


def young(node: FakeNode) -> None:
    """It has just booted."""
    node.files["/proc/uptime"] = "100.00 1.00"


def port(index: int, name: str, content: object) -> Edit:
    """A file of one port."""
    return file(f"{IB}/mlx5_{index}/ports/1/{name}", content)


def gone(*indices: int) -> Edit:
    """EFA devices that are gone."""
    return lambda node: efa.take(node, *indices)


def untaken(node: FakeNode) -> None:
    """A device that the driver did not take."""
    node.remove(f"{efa.DRIVER}/{efa.pci(3).rpartition('/')[2]}")
    node.remove(efa.device(3))


def uncounted(node: FakeNode) -> None:
    """No port has counters."""
    for index in range(9):
        node.remove(f"{IB}/mlx5_{index}/ports/1/counters")


def both(*edits: Edit) -> Edit:
    """One after the other."""

    def edit(node: FakeNode) -> None:
        for one in edits:
            one(node)

    return edit


def unknown(**keys: object) -> Edit:
    """Nothing is expected."""

    def edit(node: FakeNode) -> None:
        node.profile = replace(node.profile, efa_devices=None, **keys)  # type: ignore[arg-type]

    return edit


def no_driver(node: FakeNode) -> None:
    """The efa module is not loaded."""
    node.remove(efa.DRIVER)
    for index in range(efa.COUNT):
        node.remove(efa.device(index))


EFA_STATE = f"{efa.device(7)}/ports/1/state"
NO_SYS = both(*(lambda node, top=top: node.remove(top) for top in ("/sys/class", "/sys/bus")))
FEW = "".join(f"    domain: rdmap{index:02d}s0-rdm\n" for index in range(8))
ROWS = [
    Row("all there", "efa_count", "PASS"),
    Row("one is gone", "efa_count", "FAIL", gone(3), action="replace", says="15 of 16"),
    Row("all are gone", "efa_count", "FAIL", gone(*range(16)), rule="efa_count.none"),
    Row("one without a driver", "efa_count", "FAIL", untaken, rule="efa_count.driver",
        action="reboot", says="15 of its 16"),
    Row("no driver", "efa_count", "FAIL", no_driver, rule="efa_count.driver", action="reboot"),
    Row("one is not there yet", "efa_count", "FAIL", both(young, gone(3)), rule="efa_count.young"),
    Row("nothing expected, all there", "efa_count", "PASS", unknown()),
    Row("nothing expected, one without a driver", "efa_count", "FAIL", both(unknown(), untaken),
        rule="efa_count.driver", action="reboot"),
    Row("none, none expected", "efa_count", "SKIP", both(unknown(), gone(*range(16)))),
    Row("no /sys", "efa_count", "UNKNOWN", NO_SYS),
    Row("all active", "efa_state", "PASS"),
    Row("one is down", "efa_state", "FAIL", file(EFA_STATE, "1: DOWN"), action="reboot",
        says="rdmap07s0/1 (DOWN)"),
    Row("unreadable", "efa_state", "UNKNOWN", file(EFA_STATE, None)),
    Row("no devices", "efa_state", "SKIP", gone(*range(16))),
    Row("all offered", "efa_provider", "PASS", when="gate"),
    Row("half of them", "efa_provider", "FAIL", lambda n: n.say("fi_info", FEW), when="gate",
        says="8 of its 16"),
    Row("no answer", "efa_provider", "UNKNOWN", lambda n: n.say(
        "fi_info", rc=61, err="fi_getinfo: -61 (No data available)"), when="gate"),
    Row("it hangs", "efa_provider", "UNKNOWN", lambda n: n.say("fi_info", hangs=True), when="gate"),
    Row("empty", "efa_provider", "UNKNOWN", lambda n: n.say("fi_info", ""), when="gate"),
    Row("no program", "efa_provider", "SKIP", lambda n: n.tools.pop("fi_info"), when="gate"),
    Row("no devices", "efa_provider", "SKIP", gone(*range(16)), when="gate"),
    Row("all up", "ib_state", "PASS", mellanox()),
    Row("no more than needed", "ib_state", "PASS", mellanox(count=8)),
    Row("the ninth is not used", "ib_state", "PASS", mellanox(down(8))),
    Row("one is down at the gate", "ib_state", "FAIL", mellanox(down(3, 8)), action="drain",
        when="gate", says="mlx5_3/1"),
    Row("one has just gone down", "ib_state", "WARN", mellanox(down(3, 8)), rule="ib_state.flap"),
    Row("one is down for a minute", "ib_state", "WARN", mellanox(down(3, 8), remembered(60))),
    Row("one stays down", "ib_state", "FAIL", mellanox(down(3, 8), remembered(300)),
        action="drain"),
    Row("up, but not in the fabric", "ib_state", "FAIL", mellanox(
        down(3, 8, logical="2: INIT", phys="5: LinkUp")), action="drain", when="gate"),
    Row("a card is gone", "ib_state", "FAIL", mellanox(count=7), rule="ib_state.missing",
        action="reboot", says="7 of 8"),
    Row("a card is not there yet", "ib_state", "FAIL", mellanox(young, count=7),
        rule="ib_state.young"),
    Row("no driver", "ib_state", "FAIL", mellanox(count=0), rule="ib_state.driver",
        action="reboot"),
    Row("unreadable", "ib_state", "UNKNOWN", mellanox(port(3, "state", None), down(8))),
    Row("nonsense", "ib_state", "UNKNOWN", mellanox(port(3, "phys_state", "up"), down(8))),
    Row("nothing expected, one down", "ib_state", "WARN", mellanox(down(3), ib_ports=None),
        rule="ib_state.unused"),
    Row("nothing expected, all up", "ib_state", "PASS", mellanox(ib_ports=None)),
    Row("EFA only", "ib_state", "SKIP"),
    Row("no /sys", "ib_state", "UNKNOWN", NO_SYS),
    Row("RoCE", "ib_state", "PASS", mellanox(*(
        port(i, "link_layer", "Ethernet") for i in range(9)), ib_link_layer="Ethernet")),
    Row("another link layer", "ib_state", "FAIL", mellanox(*(
        port(i, "link_layer", "Ethernet") for i in range(9))), action="reboot"),
    Row("all fast", "ib_rate", "PASS", mellanox()),
    Row("one is slow", "ib_rate", "FAIL", mellanox(port(3, "rate", "100 Gb/sec (1X NDR)"), down(8)),
        action="drain", says="100 of 400"),
    Row("the ninth is slow", "ib_rate", "PASS", mellanox(port(8, "rate", "25 Gb/sec (1X EDR)"))),
    Row("nothing expected, one is slow", "ib_rate", "WARN", mellanox(
        port(3, "rate", "200 Gb/sec (2X NDR)"), ib_rate_gbit_s=None, ib_ports=None),
        rule="ib_rate.uneven"),
    Row("unreadable", "ib_rate", "UNKNOWN", mellanox(port(3, "rate", None))),
    Row("none is up", "ib_rate", "SKIP", mellanox(down(*range(9)))),
    Row("no ports", "ib_rate", "SKIP"),
    Row("no new errors", "ib_errors", "PASS", mellanox(remembered(link_downed=2))),
    Row("for the first time", "ib_errors", "SKIP", mellanox()),
    Row("one flap", "ib_errors", "WARN", mellanox(remembered(link_downed=1)), says="1 times"),
    Row("many flaps", "ib_errors", "FAIL", mellanox(
        remembered(link_downed=1), port(0, "counters/link_downed", "4")), action="drain"),
    Row("the driver was loaded again", "ib_errors", "PASS", mellanox(remembered(link_downed=9))),
    Row("noise", "ib_errors", "WARN", mellanox(remembered(symbol_error=0)),
        rule="ib_errors.noise"),
    Row("unreadable", "ib_errors", "UNKNOWN", mellanox(uncounted)),
    Row("no ports", "ib_errors", "SKIP"),
]  # fmt: skip
