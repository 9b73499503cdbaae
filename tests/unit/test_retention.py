"""What may be deleted: never the only verified one, never what no tier below holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume.retention import doomed, next_copy

ALL = {10, 20, 30, 40, 50}


@pytest.mark.parametrize(
    ("verified", "keep", "every", "below", "gone"),
    [
        (ALL, 3, 0, None, [10, 20]),
        (ALL, 1, 0, None, [10, 20, 30, 40]),
        (ALL, 0, 0, None, [10, 20, 30, 40]),  # never the only good one
        (ALL, 9, 0, None, []),
        ({10, 20, 30}, 3, 0, None, []),  # newer ones are being judged: they count for nothing
        ({10, 20, 30}, 1, 0, None, [10, 20]),
        ({10}, 1, 0, None, []),
        (set(), 1, 0, None, []),
        ({40, 50}, 2, 0, None, [10, 20, 30]),  # old ones need not be read to be given away
        (ALL, 1, 20, None, [10, 30]),  # every 20th stays
        (ALL, 1, 0, set(), []),  # the tier below has nothing yet
        (ALL, 1, 0, {20}, [10, 20]),  # it has 20, so what is older is worth nothing
        (ALL, 1, 0, {50}, [10, 20, 30, 40]),
        (ALL, 1, 20, {40, 50}, [10, 30, 40]),  # 20 is to stay, and only here
    ],
)
def test_doomed(
    verified: set[int], keep: int, every: int, below: set[int] | None, gone: list[int]
) -> None:
    assert doomed(ALL, verified, keep, every, below) == gone


steps = st.sets(st.integers(1, 30), max_size=12)


@given(steps, steps, st.integers(0, 4), st.integers(0, 5), st.none() | steps)
def test_what_stays(
    held: set[int], verified: set[int], keep: int, every: int, below: set[int] | None
) -> None:
    gone = doomed(held, verified, keep, every, below)
    left = held - set(gone)
    good = sorted(held & verified)
    newest = good[-max(keep, 1) :]
    assert set(newest) <= left
    assert not gone or len(newest) == max(keep, 1)
    assert {step for step in held if good and step > good[-1]} <= left
    for step in gone:
        if every and step % every == 0:
            assert below is not None
            assert step in below
        assert below is None or max(below, default=0) >= step


@pytest.mark.parametrize(
    ("verified", "below", "every", "step"),
    [
        (set(), set(), 0, None),
        ({10, 20}, set(), 0, 20),
        ({10, 20}, {20}, 0, None),  # 10 was overtaken
        ({10, 20}, {20}, 10, 10),
        ({10, 20, 30}, {20}, 10, 30),  # the newest first
        ({10}, {20}, 0, None),
    ],
)
def test_next_copy(verified: set[int], below: set[int], every: int, step: int | None) -> None:
    assert next_copy(verified, below, every) == step


@given(steps, steps, st.integers(0, 5))
def test_copies_come_to_an_end_and_lose_nothing_that_stays(
    verified: set[int], below: set[int], every: int
) -> None:
    held = set(below)
    while (step := next_copy(verified, held, every)) is not None:
        assert step not in held
        held.add(step)
    assert max(held, default=0) >= max(verified, default=0)
    assert {s for s in verified if every and s % every == 0} <= held
