"""What runs remember of each other: growth within a window, states that last, damaged files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck import counters
from healthcheck.env import Env
from healthcheck.facts import Facts
from tests.harness.fake_tools.node import BOOT_ID, FakeNode

HOUR = 3600.0


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(files={"/proc/sys/kernel/random/boot_id": BOOT_ID})


def grown(node: FakeNode, value: int, window_s: float = 3 * HOUR) -> int | None:
    """What one run finds, which then saves."""
    facts = node.facts()
    found = counters.growth(facts, {"a": value}, window_s)
    counters.save(facts)
    return found["a"]


def test_growth_within_the_window(node: FakeNode) -> None:
    assert grown(node, 5) is None
    seen = []
    for value in (5, 6, 6, 8, 8, 8, 8):
        node.now += HOUR
        seen.append(grown(node, value))
    assert seen == [0, 1, 1, 3, 2, 2, 0]


def test_a_counter_that_was_reset_starts_again(node: FakeNode) -> None:
    grown(node, 100)
    node.now += 1
    assert grown(node, 2) == 0
    node.now += 1
    assert grown(node, 3) == 1


def test_a_clock_that_went_back_forgets(node: FakeNode) -> None:
    grown(node, 1)
    node.now -= HOUR
    assert grown(node, 3) == 0


def test_another_boot_forgets(node: FakeNode) -> None:
    grown(node, 1)
    node.files["/proc/sys/kernel/random/boot_id"] = "another"
    assert grown(node, 3) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"boot_id": "x"}', json.dumps({"boot_id": BOOT_ID}),
     json.dumps({"boot_id": BOOT_ID, "points": {"a": [[1]]}, "since": {}}),
     json.dumps({"boot_id": BOOT_ID, "points": {"a": [["x", 1]]}, "since": {}}),
     json.dumps({"boot_id": BOOT_ID, "points": [], "since": {}}),
     json.dumps({"boot_id": BOOT_ID, "points": {"a": []}, "since": {}}),
     '{"a":' * 100_000],
)  # fmt: skip
def test_a_damaged_file_is_begun_anew(node: FakeNode, text: str) -> None:
    node.memory[counters.FILE] = text
    assert grown(node, 3) is None
    node.now += 1
    assert grown(node, 4) == 1


def test_a_state_that_lasts(node: FakeNode) -> None:
    def held(*, on: bool) -> float | None:
        facts = node.facts()
        found = counters.held_s(facts, "down", on=on)
        counters.save(facts)
        return found

    assert held(on=False) is None
    assert counters.FILE not in node.memory  # nothing new, nothing written
    assert held(on=True) == 0
    node.now += 60
    assert held(on=True) == 60
    assert held(on=False) is None
    node.now += 60
    assert held(on=True) == 0
    node.now -= 600  # the clock was set back
    assert held(on=True) == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), min_size=1, max_size=400))
def test_growth_is_never_negative_and_the_file_stays_small(steps: list[tuple[float, int]]) -> None:
    points: list[tuple[float, int]] = []
    now = 0.0
    for wait_s, value in steps:
        now += wait_s
        points = counters.add(points, now, value)
        assert 0 <= counters.grown(points, now, 3 * HOUR) <= value
        assert len(points) <= 200


def test_a_file_in_a_folder(tmp_path: Path) -> None:
    door = Env(Path("/"), 10, tmp_path)
    assert door.remembered("x.json") is None
    door.remember("x.json", "é\n")
    assert door.remembered("x.json") == "é\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    Env(Path("/"), 10, tmp_path / "gone").remember("x.json", "lost")
    Env(Path("/"), 10, None).remember("x.json", "lost")
    assert Env(Path("/"), 10, None).remembered("x.json") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.may_skip("needs an ordinary user")
def test_who_may_not_write_is_quiet(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    Env(Path("/"), 10, tmp_path).remember("x.json", "text")
    assert list(tmp_path.iterdir()) == []


def test_facts_are_saved_only_when_somebody_counted(node: FakeNode) -> None:
    facts: Facts = node.facts()
    counters.save(facts)
    assert node.memory == {}
