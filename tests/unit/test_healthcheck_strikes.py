"""Strikes: a GPU that breaks again is replaced, wherever it is by then."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from healthcheck import gpu_names
from healthcheck.finding import Action, Finding
from healthcheck.strikes import (
    MOST,
    Strike,
    StrikeBook,
    added,
    condemned,
    escalate,
    name_of,
)

NOW = 1_800_000_000.0
DAY = 86400.0
SERIAL = "1650000000123"
UUID = "GPU-00000001-1111-2222-3333-444444444444"


def fault(action: Action = "reboot", gpu: str | None = SERIAL) -> Finding:
    return Finding("xid", "FAIL", "hardware", action, "fell off the bus", "", gpu, "xid.79", NOW)


def strike(days_ago: float = 0.0, boot: str = "aaaaaaaa", action: Action = "reboot") -> Strike:
    return Strike(NOW - days_ago * DAY, boot, "n7", "xid.79", action)


ROWS = {
    # name: (action, earlier strikes, action in the end)
    "the first": ("reboot", [], "reboot"),
    "the same boot": ("reboot", [strike(0.1, "bbbbbbbb")], "reboot"),
    "another boot": ("reboot", [strike(0.1)], "replace"),
    "another boot, a reset": ("reset", [strike(6.9)], "replace"),
    "long ago": ("reboot", [strike(7.1)], "reboot"),
    "one of several": ("reboot", [strike(99), strike(3), strike(0, "bbbbbbbb")], "replace"),
    "for a person": ("drain", [strike(1)], "drain"),
    "replaced at once": ("replace", [strike(1)], "replace"),
    "nothing to do": ("none", [strike(1)], "none"),
}


@pytest.mark.parametrize("name", ROWS)
def test_escalate(name: str) -> None:
    action, before, expected = ROWS[name]
    found = escalate(fault(action), before, "bbbbbbbb", NOW)  # type: ignore[arg-type]
    assert found.action == expected
    again = expected == "replace" and action != "replace"
    assert ("again after xid.79 on n7" in found.detail) == again


def test_one_strike_per_boot_and_the_newest_are_kept() -> None:
    first = added([], strike(2))
    assert added(first, strike(1)) == [strike(1)]
    many: list[Strike] = []
    for day in range(MOST + 5, 0, -1):
        many = added(many, strike(day, f"{day:08d}"))
    assert len(many) == MOST
    assert many[-1] == strike(1, "00000001")


def test_condemned() -> None:
    old, new = strike(29, "a", "replace"), strike(3, "b", "replace")
    assert condemned([old, new, strike(1, "c")], NOW) == new
    assert condemned([strike(1)], NOW) is None
    assert condemned([strike(31, "a", "replace")], NOW) is None


@pytest.mark.parametrize(
    ("gpu", "name"),
    [(SERIAL, SERIAL), (UUID, UUID), (None, "node-n3"), ("0000:1b:00", "node-n3"), ("3", "node-n3"),
     ("../../x", "node-n3")],
)  # fmt: skip
def test_only_what_is_the_same_on_every_node_names_a_gpu(gpu: str | None, name: str) -> None:
    assert name_of(fault(gpu=gpu), "n3") == name


def book(local: Path | None, shared: Path | None) -> StrikeBook:
    return StrikeBook(local, shared)


def test_strikes_follow_a_gpu_to_another_node_but_not_those_of_a_node(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    here, there = book(tmp_path / "n3", shared), book(tmp_path / "n9", shared)
    here.write(SERIAL, [strike(1)])
    here.write("node-n3", [strike(2)])
    assert there.read(SERIAL) == here.read(SERIAL) == [strike(1)]
    assert here.read("node-n3") == [strike(2)]
    assert there.read("node-n3") == []
    assert book(tmp_path / "n9", None).read(SERIAL) == []
    there.write(SERIAL, [*there.read(SERIAL), strike(0, "b")])
    assert here.read(SERIAL) == [strike(1), strike(0, "b")]
    assert [path.name for path in shared.iterdir()] == [f"{SERIAL}.json"]


def test_the_copy_on_the_node_is_enough(tmp_path: Path) -> None:
    gone = tmp_path / "file"
    gone.write_text("")
    one = book(tmp_path / "n3", gone / "shared")
    one.write(SERIAL, [strike(1)])
    assert one.read(SERIAL) == [strike(1)]
    nowhere = book(None, None)
    nowhere.write(SERIAL, [strike(1)])
    assert nowhere.read(SERIAL) == []


def test_a_shared_folder_that_hangs_costs_its_time_limit_only(tmp_path: Path) -> None:
    """A named pipe without a writer holds its reader for ever, as a dead file server does."""
    shared = tmp_path / "shared"
    shared.mkdir()
    os.mkfifo(shared / f"{SERIAL}.json")
    one = book(tmp_path / "n3", shared)
    one.write("node-n3", [strike(1)])
    assert one.read(SERIAL) == []


GOOD = json.dumps([{"time": NOW, "boot": "a", "node": "n7", "rule": "x", "action": "reboot"}])


@pytest.mark.parametrize(
    "text",
    ["", "{}", "3", "[3]", "[{}]", "[" * 9999, GOOD[:-1], GOOD.replace("reboot", "explode"),
     GOOD.replace(str(NOW), '"x"'), GOOD.replace("node", "nodes"), "null", GOOD.replace(
         str(NOW), "-1")],
)  # fmt: skip
def test_a_damaged_file_is_no_strike(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{SERIAL}.json").write_text(text)
    assert book(tmp_path, None).read(SERIAL) == []
    (tmp_path / f"{SERIAL}.json").write_text(GOOD)
    assert len(book(tmp_path, None).read(SERIAL)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
@pytest.mark.may_skip("only root can give a file away")
def test_only_the_owner_of_the_folder_can_condemn_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / f"{SERIAL}.json"
    file.write_text(GOOD)
    os.chown(file, 65534, 65534)
    assert book(tmp_path, None).read(SERIAL) == []


BUSES = ["00000000:1B:00.0", "0000:1b:00", "0000:1B:00.0", "PCI:0000:1b:00", "PCI:00000000:1B:00"]


def test_an_address_in_every_form() -> None:
    assert {gpu_names.address(bus) for bus in BUSES} == {"0000:1b:00"}
    assert gpu_names.address("0001:1b:00") == "0001:1b:00"
    for other in ("", SERIAL, UUID, "1b:00.0", "0000:1b:00.9", "zz"):
        assert gpu_names.address(other) is None


def test_the_serial_of_a_gpu_that_is_lost_is_still_known(tmp_path: Path) -> None:
    gpu_names.save(tmp_path, gpu_names.remember({}, [(BUSES[0], SERIAL), ("[N/A]", UUID)]))
    known = gpu_names.load(tmp_path)
    assert known == {"0000:1b:00": SERIAL}
    lost, other = fault(gpu="PCI:0000:1b:00"), fault(gpu="0000:3d:00")
    assert [f.gpu for f in gpu_names.named([lost, other, fault(gpu=None)], known)] == [
        SERIAL, "0000:3d:00", None,
    ]  # fmt: skip
    swapped = gpu_names.remember(known, [(BUSES[1], UUID)])
    assert swapped == {"0000:1b:00": UUID}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 3}', '{"0000:1b:00": 3}', "[" * 9999])
def test_a_damaged_file_of_names_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / gpu_names.FILE).write_text(text)
    assert gpu_names.load(tmp_path) == {}
    assert gpu_names.load(None) == {}
