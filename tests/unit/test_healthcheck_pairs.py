"""Pairs and peers: who meets whom, and who is to blame."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.deep.pairs import Blame, blame, rounds
from healthcheck.deep.peers import differ, slow


@given(st.integers(0, 40), st.integers(0, 8))
def test_rounds_are_fair(number: int, count: int) -> None:
    nodes = [f"n{i}" for i in range(number)]
    found = rounds(nodes, count)
    partners = number - 1 + number % 2  # one of them is a rest when the number is odd
    assert len(found) == (min(count, partners) if number > 1 else 0)
    met = [frozenset(pair) for one in found for pair in one]
    assert len(met) == len(set(met))
    for one in found:
        busy = [node for pair in one for node in pair]
        assert len(busy) == len(set(busy)) == number // 2 * 2
        assert set(busy) <= set(nodes)


def test_rounds_of_four() -> None:
    assert rounds(["a", "b", "c", "d"], 3) == [
        [("a", "d"), ("b", "c")], [("a", "c"), ("d", "b")], [("a", "b"), ("c", "d")],
    ]  # fmt: skip
    assert rounds(["a", "a"], 3) == []


@given(st.integers(4, 16), st.data())
def test_one_bad_node_is_found_and_only_that_one(number: int, data: st.DataObject) -> None:
    nodes = [f"n{i}" for i in range(number)]
    bad = data.draw(st.sampled_from(nodes))
    results = {pair: bad not in pair for one in rounds(nodes, 3) for pair in one}
    assert blame(results) == Blame([bad], [])


@given(st.integers(2, 12), st.data())
def test_who_passed_once_is_never_blamed(number: int, data: st.DataObject) -> None:
    nodes = [f"n{i}" for i in range(number)]
    pairs = list(combinations(nodes, 2))
    said = st.sampled_from([True, False, None])
    results = {pair: data.draw(said) for pair in pairs}
    cleared = {node for pair, passed in results.items() if passed for node in pair}
    assert not set(blame(results).nodes) & cleared


ROWS: dict[str, tuple[dict[tuple[str, str], bool | None], Blame]] = {
    "all pass": ({("a", "b"): True, ("a", "c"): True}, Blame([], [])),
    "nobody knows": ({("a", "b"): None, ("a", "c"): None}, Blame([], [])),
    "one link": ({("a", "b"): False, ("a", "c"): True, ("b", "d"): True}, Blame([], [("a", "b")])),
    "one failure says nothing": (
        {("a", "b"): False, ("b", "c"): True, ("a", "c"): None}, Blame([], [("a", "b")])),
    "two failures": (
        {("a", "b"): False, ("a", "c"): False, ("b", "d"): True, ("c", "e"): True},
        Blame(["a"], [])),
    "two failures with partners that never pass": (
        {("a", "b"): False, ("a", "c"): False, ("b", "c"): False},
        Blame([], [("a", "b"), ("a", "c"), ("b", "c")])),
    "all fail: the switch": (
        {("a", "b"): False, ("c", "d"): False}, Blame([], [("a", "b"), ("c", "d")])),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_blame(name: str) -> None:
    results, expected = ROWS[name]
    assert blame(results) == expected


def test_slow_is_below_the_median_of_the_peers() -> None:
    assert slow({"a": 100, "b": 101, "c": 70, "d": 99}) == ["c"]
    assert slow({"a": 100, "b": 101, "c": 85, "d": 99}) == []
    assert slow({"a": 100, "b": 101, "c": 85, "d": 99}, 0.9) == ["c"]
    assert slow({"a": 100, "b": 1}) == []
    assert slow({}) == []


def test_differ_goes_by_the_majority() -> None:
    assert differ({"a": "x", "b": "x", "c": "y"}) == ["c"]
    assert differ({"a": "x", "b": "y", "c": "z"}) == []
    assert differ({"a": "x", "b": "x", "c": "y", "d": "y"}) == []
    assert differ({"a": "x", "b": "y"}) == []
    assert differ({"a": "H100/x", "b": "H100/x", "c": "H100/y", "d": "H200/z"}) == ["c"]
    assert differ({}) == []
