"""The fault library is whole, and a row that is not as expected is never called good."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.faults import fault, judge, page, twin
from tests.faults.campaign import Campaign
from tests.faults.fault import Fault, Sabotage, recovers, stops
from tests.faults.judge import Left, Row
from tests.sessions.environment import by_environment

FAULTS = fault.discover()


def test_every_fault_says_what_it_emulates() -> None:
    assert len(FAULTS) > 40
    assert {one.area for one in FAULTS.values()} == set(fault.AREAS)
    silent = [name for name, one in FAULTS.items() if len(one.emulates) < 20]
    assert silent == []


def test_a_storm_only_has_what_a_run_survives_at_any_moment() -> None:
    wild = [one for one in FAULTS.values() if one.storm]
    assert len(wild) > 5
    assert all(one.expected.end == "done" and one.sabotage is None for one in wild)


def test_every_recipe_of_a_ci_row_exists_and_can_meet_it() -> None:
    twins = twin.discover(anywhere=True)
    for one in FAULTS.values():
        assert all(twin.applies(one, twins[recipe]) for recipe in one.ci)


def test_a_copy_is_only_called_differently(tmp_path: Path) -> None:
    planted = Fault(
        lambda _: None,
        stops("rank_failed", 1),
        sabotage=Sabotage("raise ValueError('it's')", "exit 3"),
        commands=("true",),
    )
    ten_lines = twin.discover()["ten_lines"]
    copy = twin.copy(ten_lines, tmp_path / "my copy", planted, tmp_path / "fuse")
    first, last = yaml.safe_load((copy / "recipe.yaml").read_text())["commands"]
    assert (first["run"], first["done_by"]) == ("true", "exit")
    assert last["run"].startswith("env SABOTAGE_PYTHON=")
    assert last["run"].endswith(" bash train.sh")
    same = [p.name for p in copy.iterdir() if p.name != "recipe.yaml"]
    assert all((copy / n).read_bytes() == (ten_lines.folder / n).read_bytes() for n in same)


def lines(count: int, **changed: Any) -> list[dict[str, Any]]:
    steps = [{"step": n, "loss": 1 / n, "samples": f"s{n}", "attempt": 1} for n in range(1, count)]
    return [{**line, **(changed if line["step"] == 3 else {})} for line in steps]


JOURNAL: list[dict[str, Any]] = [
    {"event": "supervisor_started", "job": "7", "restart": 0},
    {"event": "attempt_started", "command": "train"},
    {"event": "incident", "cause": "node_lost"},
    {"event": "attempt_ended", "cause": "node_lost", "action": "swap"},
    {"event": "attempt_started", "command": "train"},
    {"event": "done"},
]
CALM = Left([], lines(9), {"weights": "w"})
WELL = Left(JOURNAL, [*lines(9), *lines(9)], {"weights": "w"})


def found(run: Left, lost: int = 0, end: str = "done") -> list[str]:
    summary: Any = SimpleNamespace(
        incidents=(), outcome=end, why=None, attempts=(1, 2), lost_steps=lost
    )
    facts = judge.seen(summary, run, CALM)
    return judge.problems(recovers("swap", "node_lost"), facts, same_layout=True, every=5)


def test_a_row_as_expected_is_good() -> None:
    assert found(WELL) == []


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (Left(JOURNAL, lines(9, loss=0.5), {"weights": "w"}), "losses differ"),
        (Left(JOURNAL, lines(9, samples="x"), {"weights": "w"}), "samples differ"),
        (Left(JOURNAL, [*lines(9), *lines(9, loss=0.5)], {"weights": "w"}), "losses differ"),
        (Left(JOURNAL, lines(8), {"weights": "w"}), "or are missing"),
        (Left(JOURNAL, lines(9), {"weights": "v"}), "weights differ"),
        (Left(JOURNAL[:2], lines(9), {"weights": "w"}), "cause is None, expected node_lost"),
        (
            Left([*JOURNAL[:3], {**JOURNAL[3], "action": "retry"}], lines(9), None),
            "action is retry",
        ),
        (Left([*JOURNAL, {"event": "stopped", "exit_code": 1}], lines(9), None), "action is stop"),
    ],
)
def test_what_differs_is_named(run: Left, said: str) -> None:
    assert any(said in problem for problem in found(run))


def test_too_many_lost_training_steps_and_another_end_are_named() -> None:
    assert found(WELL, lost=11) == ["11 training steps lost, 10 allowed"]
    assert found(WELL, end="going on") == ["end is going on, expected done"]


def test_a_finished_command_must_not_run_again() -> None:
    again: list[dict[str, Any]] = [{"event": "attempt_started", "command": "extra1"}] * 2
    assert found(Left([*again, *JOURNAL], lines(9), {"weights": "w"})) == [
        "command extra1 was run again"
    ]


def test_the_page_shows_what_is_wrong_and_escapes_it() -> None:
    row = Row("node", "cut <it>", "why", "ten_lines", "swap", problems=("a & b",))
    text = page.render([row], 12.0)
    assert "0 of 1 faults" in text
    assert "cut &lt;it&gt;" in text
    assert "a &amp; b" in text


def test_a_campaign_keeps_the_rows_of_other_recipes_and_replaces_its_own(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, [], [])
    for name in ("ten_lines", "llama2_nemo"):
        (tmp_path / name).mkdir()
        campaign.write(name, [Row("node", "cut", "why", name, "swap", problems=("bad",))], 60.0)
    good = Row("node", "cut", "why", "ten_lines", "swap", commands={"train": 2})
    campaign.write("ten_lines", [good], 30.0)
    facts = json.loads((tmp_path / "faults.json").read_text())
    assert [(row["recipe"], row["good"]) for row in facts["rows"]] == [
        ("llama2_nemo", False),
        ("ten_lines", True),
    ]
    assert (facts["good"], facts["wall_s"]) == (False, 90.0)
    assert "1 of 2 faults" in (tmp_path / "faults.html").read_text()


def test_every_recipe_meets_its_faults_in_its_own_environment() -> None:
    assert by_environment(["--ci"]) == {
        home: ["--ci"] for home in ("cpu", "llama2_automodel", "llama2_nemo")
    }
    assert by_environment(["--list"]) == {"cpu": ["--list"]}
    named = ["--recipe", "ten_lines", "--recipe=llama2_nemo", "--seed", "7", "--recipe", "unknown"]
    assert by_environment(named) == {
        "cpu": ["--recipe", "ten_lines", "--recipe", "unknown", "--seed", "7"],
        "llama2_nemo": ["--recipe", "llama2_nemo", "--seed", "7"],
    }
