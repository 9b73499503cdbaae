"""The bench's arithmetic: medians with a "never", limits, and the parts of a recovery."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.figures import Row, phases, table
from benchmarks.launch import environment
from benchmarks.ways import WAYS

MEDIANS: list[tuple[list[float | None], float | None]] = [
    ([3.0, 1.0, 2.0], 2.0),
    ([1.0, None, 2.0], 2.0),
    ([1.0, None, None], None),  # most of them never came back
    ([1.0, None], None),
    ([], None),
]


@pytest.mark.parametrize(("samples", "median"), MEDIANS)
def test_a_recovery_that_never_came_is_longer_than_any(
    samples: list[float | None], median: float | None
) -> None:
    assert Row("way", "fault", samples).median == median


@pytest.mark.parametrize(
    ("samples", "limit", "met"),
    [([4.0], 4.0, True), ([4.1], 4.0, False), ([None], 4.0, False), ([4.0], None, None)],
)
def test_a_promise_is_kept_or_not(
    samples: list[float | None], limit: float | None, met: bool | None
) -> None:
    assert Row("way", "fault", samples, limit).met is met


def test_table_names_what_was_not_kept() -> None:
    text = table([Row("us", "a", [8.0], 6.0, "floor + 2"), Row("them", "a", [None])], 4.0)
    lines = text.splitlines()[2:]
    assert lines[0] == "| us | a | 8.0 | 8.0 | 2.0 | 6.0 (floor + 2) | NO |"
    assert lines[1] == "| them | a | never | never |  |  |  |"


def event(name: str, time: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "time": time, **facts}


def test_parts_of_a_recovery_add_up_to_it() -> None:
    journal = [
        event("gate", 3.0),
        event("first_step", 5.0),
        event("supervisor_started", 20.0),
        event("incident", 20.5, detected_at=14.0),  # the guards saw it
        event("attempt_ended", 20.6),
        event("gate", 21.0),
        event("attempt_started", 22.0),
        event("first_step", 26.5),
        event("incident", 40.0, detected_at=39.0),
    ]
    found = phases(journal, 10.0, 26.0)
    rounded = {name: round(value, 3) for name, value in found.items()}
    assert rounded == {
        "detect": 4.0, "scheduler": 6.0, "clean": 0.6, "gate": 0.4, "pick": 1.0, "start": 4.0,
    }  # fmt: skip
    assert list(rounded) == ["detect", "scheduler", "clean", "gate", "pick", "start"]


def test_names_for_torch_are_made_where_torchrun_has_not_made_them() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "MUSTER_RUN_DIR": "/x"}
    found = environment(slurm)
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("3", "1", "4")
    assert (found["MUSTER_RESUME"], found["MUSTER_ATTEMPT"]) == ("", "1")
    assert "RANK" not in environment({**slurm, "TORCHELASTIC_RUN_ID": "7"})


def test_every_way_trains_the_same_program() -> None:
    assert all("PROGRAM" in way.script and way.faults for way in WAYS)
