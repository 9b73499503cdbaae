"""Which of the driver's reports are causes, as plain data: pure, without a node."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.faults import verdicts
from healthcheck.policy import POLICY, row
from healthcheck.read.kernel_log import KernelLine
from healthcheck.read.xid import Event, parse, parse_all, read_events, write_events

A, B = "0000:86:00", "0000:97:00"
NONE, RESET = "changed from 0x1 (Reset) to 0x0 (None)", "changed from 0x0 (None) to 0x1 (Reset)"


def xid(
    number: int, at: float = 0.0, bus: str = A, text: str = "", pid: str | None = None
) -> Event:
    return Event("xid", number, bus, at, text, pid=pid)


def sxid(number: int, at: float = 0.0, text: str = "Fatal, Link 08 x") -> Event:
    return Event("sxid", number, "0000:06:00", at, text)


CAUSES = {
    # name: (events, recovery actions now, rules of what is left; ! means that the node failed)
    "nothing": ([], {}, []),
    "a fault": ([xid(48)], {}, ["xid.48!"]),
    "a program's fault": ([xid(31)], {}, ["xid.31"]),
    "a program sees the fault": (
        [xid(48), *(xid(n, 1) for n in (13, 31, 43))], {}, ["xid.48!"]),
    "a program's fault came first": ([xid(31, 0), xid(48, 1)], {}, ["xid.31", "xid.48!"]),
    "at the same moment": ([xid(48, 1), xid(31, 1)], {}, ["xid.48!"]),
    "on another GPU": ([xid(48), xid(31, 1, B)], {}, ["xid.48!", "xid.31"]),
    "other faults do not follow": ([xid(48), xid(32, 1)], {}, ["xid.48!", "xid.32"]),
    "a program's fault hides nothing": ([xid(31), xid(43, 1)], {}, ["xid.31", "xid.43"]),
    "cleaning up": ([xid(31), xid(45, 60)], {}, ["xid.31"]),
    "cleaning up first": ([xid(45), xid(31, 60)], {}, ["xid.31"]),
    "cleaning up much later": ([xid(31), xid(45, 61)], {}, ["xid.31", "xid.45"]),
    "cleaning up much earlier": ([xid(45), xid(31, 61)], {}, ["xid.45", "xid.31"]),
    "cleaning up twice": ([xid(45, pid="1"), xid(45, 1, pid="2")], {}, ["xid.45", "xid.45"]),
    "cleaning up on another GPU": ([xid(31), xid(45, 1, B)], {}, ["xid.31", "xid.45"]),
    "cleaning up after one of a switch": (
        [sxid(20009, 0, "Non-fatal, x"), xid(45, 1)], {}, ["sxid.20009.nonfatal", "xid.45"]),
    "it names its cause": ([xid(45, text="x caused by previous Xid 145")], {}, []),
    "asks for a reset": ([xid(154, text=RESET)], {}, ["xid.154.reset!"]),
    "asks for it twice": ([xid(154, 0, text=RESET), xid(154, 1, text=RESET)], {},
                          ["xid.154.reset!"]),
    "each GPU its own": ([xid(154, 0, A, NONE), xid(154, 0, B, RESET)], {}, ["xid.154.reset!"]),
    "withdrawn": ([xid(48, 0), xid(154, 1, text=RESET), xid(154, 2, text=NONE)], {}, []),
    "withdrawn at the same moment": ([xid(48, 2), xid(154, 2, text=NONE)], {}, []),
    "withdrawn on another GPU": ([xid(48, 0), xid(154, 1, B, NONE)], {}, ["xid.48!"]),
    "beats the table": ([xid(119, 0), xid(154, 0, text=RESET)], {},
                        ["xid.119", "xid.154.reset!"]),
    "not what comes later": ([xid(154, 0, text=RESET), xid(119, 1)], {},
                             ["xid.154.reset!", "xid.119!"]),
    "an unknown wish": ([xid(154, text="changed from 0x0 (None) to 0x9 (x)")], {},
                        ["xid.154"]),
    "the driver wants nothing now": ([xid(48)], {A: "None"}, ["xid.48"]),
    "that of another GPU": ([xid(48)], {B: "None"}, ["xid.48!"]),
    "but it was off the bus": ([xid(79)], {A: "None"}, ["xid.79!"]),
    "a switch": ([sxid(20034)], {A: "None"}, ["sxid.20034.fatal!"]),
    "a link of a GPU off the bus": ([xid(79, 0), sxid(20034, 30)], {}, ["xid.79!"]),
    "at the very moment": ([xid(79, 0), sxid(20034, 0)], {}, ["xid.79!"]),
    "before it": ([sxid(20034, 0), xid(79, 1)], {}, ["sxid.20034.fatal!", "xid.79!"]),
    "later": ([xid(79, 0), sxid(20034, 31)], {}, ["xid.79!", "sxid.20034.fatal!"]),
    "after another fault": ([xid(48, 0), sxid(20034, 1)], {}, ["xid.48!", "sxid.20034.fatal!"]),
    "a test": ([xid(999)], {}, []),
    "three processes": (
        [xid(13, i, pid=str(i)) for i in range(3)], {}, ["xid.repeated"] * 3),
    "three without a process": ([xid(13, i, text=str(i)) for i in range(3)], {}, ["xid.13"] * 3),
    "three GPUs": ([xid(13, i, f"0000:0{i}:00", pid=str(i)) for i in range(3)], {}, ["xid.13"] * 3),
    "no switch is a GPU": ([Event("off", 0, A, 0.0), Event("gsp", 0, A, 0.0)], {}, []),
}  # fmt: skip


@pytest.mark.parametrize("number", [14, 31, 32, 44])
def test_the_same_fault_under_several_processes(number: int) -> None:
    found = verdicts([xid(number, i, pid=str(i)) for i in range(3)], {})
    assert [one.rule for one in found] == ["xid.repeated"] * 3


@pytest.mark.parametrize("name", CAUSES)
def test_causes(name: str) -> None:
    events, recovery, wanted = CAUSES[name]
    assert [v.rule + "!" * v.failed for v in verdicts(events, recovery)] == wanted


EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["xid", "sxid", "off", "init", "gsp"]),
    number=st.one_of(st.integers(0, 9999), st.sampled_from([13, 31, 43, 45, 48, 79, 154, 20034])),
    bus=st.sampled_from([A, B, None]),
    time=st.floats(0, 1e6),
    text=st.one_of(st.text(max_size=40), st.sampled_from([NONE, RESET, "Fatal, x", "Nonfatal x"])),
    pid=st.one_of(st.none(), st.sampled_from("123")),
)


@given(st.lists(EVENTS, max_size=12))
def test_no_event_is_judged_twice_and_every_rule_has_a_row(events: list[Event]) -> None:
    events.sort(key=lambda event: event.time)
    found = list(verdicts(events, {A: "None"}))
    assert len(found) <= len(events)
    assert all(POLICY[row(one.rule)].action != "none" for one in found if one.failed)


@given(st.lists(EVENTS, max_size=8))
def test_events_outlive_the_log_in_a_file(events: list[Event]) -> None:
    assert read_events(write_events(events, "boot"), "boot") == events
    assert read_events(write_events(events, "boot"), "another") == []


@pytest.mark.parametrize(
    "text",
    [None, "", "[", "[]", "null", '{"boot_id": "b"}', '{"boot_id": "b", "events": 1}',
     '{"boot_id": "b", "events": [1]}', '{"boot_id": "b", "events": [{"kind": "xid"}]}',
     '{"boot_id": "b", "events": [{"kind": "xid", "number": 1, "bus": "", "time": "x"}]}',
     "[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_of_events_is_empty(text: str | None) -> None:
    assert read_events(text, "b") == []


def test_what_was_said_before_counts_and_a_storm_is_one_event() -> None:
    lines = [KernelLine(float(i), f"NVRM: Xid (PCI:{A}): 79, x") for i in range(1000)]
    (event,) = parse_all(lines)
    assert (event.count, event.time, event.bus) == (1000, 0.0, A)
    assert parse_all([*lines, KernelLine(1.0, f"NVRM: Xid (PCI:{B}): 79, x")])[1].bus == B


@given(st.text(max_size=200), st.sampled_from(["", "NVRM: ", "NVRM: Xid (PCI:", "nvidia"]))
def test_any_text_is_no_event_or_one(text: str, start: str) -> None:
    event = parse(KernelLine(0.0, start + text))
    assert event is None or dataclasses.asdict(event)["time"] == 0.0
