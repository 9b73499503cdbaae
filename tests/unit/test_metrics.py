"""metrics.jsonl as it grows: torn lines wait, foreign lines are passed over, nothing crashes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume.metrics import MetricsTail


def line(step: object, time: object, attempt: object = 2, **more: object) -> bytes:
    return json.dumps({"step": step, "time": time, "attempt": attempt, **more}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def facts(tail: MetricsTail) -> tuple[Any, ...]:
    return tail.first_step, tail.first_time, tail.last_step, tail.last_time


def test_a_torn_line_waits_for_its_rest(path: Path) -> None:
    tail, whole = MetricsTail(path, 2), line(5, 10.0)
    tail.poll()
    assert facts(tail) == (None, None, None, None)
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        tail.poll()
        assert tail.last_step is None
    path.write_bytes(whole)
    tail.poll()
    assert facts(tail) == (5, 10.0, 5, 10.0)
    with path.open("ab") as file:
        file.write(line(6, 11.5))
    tail.poll()
    tail.poll()
    assert facts(tail) == (5, 10.0, 6, 11.5)
    assert tail.step_times == [1.5]


GARBAGE = [
    b"\n", b"nothing\n", b"\xff\xfe\n", b"[1, 2]\n", b"3\n", b"[" * 100_000 + b"\n", b"{}\n",
    b'{"attempt": 2}\n', line("x", 1), line(1, "x"), line(None, 1), line(1, None), line([1], 1),
    b'{"step": Infinity, "time": 1, "attempt": 2}\n', b'{"step": NaN, "time": 1, "attempt": 2}\n',
    b'{"step": 1, "time": Infinity, "attempt": 2}\n', b'{"step": 1, "time": NaN, "attempt": 2}\n',
    line(3, 1.0, attempt=1), line(3, 1.0, attempt=None), line(3, 1.0, attempt="2"),
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda g: repr(g[:40]))
def test_garbage_and_other_attempts_are_passed_over(garbage: bytes, path: Path) -> None:
    path.write_bytes(line(4, 10) + garbage + line(5, 12))
    tail = MetricsTail(path, 2)
    tail.poll()
    assert (facts(tail), tail.step_times) == ((4, 10.0, 5, 12.0), [2.0])


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_any_bytes_in_any_pieces(content: bytes, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "metrics.jsonl")
        tail = MetricsTail(path, 2)
        for cut in [*sorted(cuts), len(content)]:
            path.write_bytes(content[:cut])
            tail.poll()
        path.write_bytes(content + b"\n" + line(7, 1.0))
        tail.poll()
        assert tail.last_step == 7


@pytest.mark.parametrize(
    ("gaps", "wanted"),
    [
        ([], None),
        ([1.0] * 4, None),
        ([1.0] * 5, 1.0),
        ([1.0] * 49 + [9.0], 9.0),
        ([1.0] * 199 + [9.0], 1.0),
        ([9.0] * 10 + [1.0] * 600, 1.0),  # old ones are forgotten
    ],
)
def test_p99(gaps: list[float], wanted: float | None, path: Path) -> None:
    now, lines = 100.0, [line(0, 100.0)]
    for step, gap in enumerate(gaps, 1):
        now += gap
        lines.append(line(step, now))
    path.write_bytes(b"".join(lines))
    tail = MetricsTail(path, 2)
    tail.poll()
    assert tail.p99_s() == wanted


def test_a_clock_that_is_set_back_gives_no_step_time(path: Path) -> None:
    path.write_bytes(line(1, 100) + line(2, 50) + line(3, 52))
    tail = MetricsTail(path, 2)
    tail.poll()
    assert tail.step_times == [2.0]


def test_a_clock_that_jumps_is_no_training_step(path: Path) -> None:
    times = [10, 11, 12, 13, 3613, 3614, 14, 15, 16]
    path.write_bytes(b"".join(line(step, time) for step, time in enumerate(times)))
    tail = MetricsTail(path, 2)
    tail.poll()
    assert tail.step_times == [1.0] * 6
    assert tail.p99_s() == 1.0
