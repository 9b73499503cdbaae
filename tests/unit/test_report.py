"""The report tells the story of a run: rows of data in, attempts, incidents, lanes, figures out."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from muster.errors import CreateError, DataError, UnavailableError
from resume.report import summarise, write_report

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
THREE, UNINTERRUPTED = DATA / "three_incidents", DATA / "uninterrupted"
Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return Path(shutil.copytree(THREE, tmp_path / "three"))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """A run folder from (event, time, facts) and (attempt, step, time) rows; token 1."""

    def make_run(journal: list[tuple[Any, ...]], steps: Optional[list[Any]] = None) -> Path:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        rows = [{"event": e, "time": 100.0 + t, "token": 1, **f} for e, t, f in journal]
        write(run_dir / "journal.jsonl", rows)
        if steps is not None:
            lines = [
                {"attempt": a, "step": s, "time": 100.0 + t, "loss": 1.0 / s, "step_s": 1.0}
                for a, s, t in steps
            ]
            write(run_dir / "metrics.jsonl", lines)
        return run_dir

    return make_run


def started(attempt: int, resume: int, *nodes: str) -> dict[str, Any]:
    return {"attempt": attempt, "command": "c", "nodes": list(nodes), "resume_step": resume}


def test_three_incidents_are_told_with_names_answers_and_phases() -> None:
    told = [
        (i["name"], i["answer"], i["detect_s"], i["decide_s"], i["launch_s"], i["lost_steps"])
        for i in summarise(THREE).as_json()["incidents"]
    ]
    assert told == [
        ("power loss of n2 (worker)", "swapped to spare n3", 2.5, 0.7, 3.6, 4),
        ("GPU fault on n3 (worker)", "requeued, now with n4", 1.2, 8.3, 3.6, 7),
        ("power loss of the batch host n1", "guard took over, now with n5", 3.1, 0.6, 3.6, 13),
    ]


def test_summary_holds_what_the_demo_promises() -> None:
    summary = summarise(THREE, baseline=UNINTERRUPTED).as_json()
    assert [(f["name"], f["node"], f["verdict"], f["recover_s"]) for f in summary["faults"]] == [
        ("power loss", "n2", "swap", 7.3),
        ("GPU fault", "n3", "requeue", 13.6),
        ("power loss of the batch host n1", "n1", "takeover", 7.8),
    ]
    wanted = {
        "recovered": 3, "injected": 3, "loss_identical": True, "samples_identical": True,
        "nodes_replaced": 3, "outcome": "done", "lost_steps": 24, "last_step": 60,
    }  # fmt: skip
    assert {key: summary[key] for key in wanted} == wanted
    assert summary["final_loss"] == read(UNINTERRUPTED / "metrics.jsonl")[-1]["loss"]


def test_text_for_the_terminal_is_the_story_in_a_few_lines() -> None:
    lines = summarise(THREE, baseline=UNINTERRUPTED).text.splitlines()
    assert [line.split("→ ")[-1] for line in lines[2:]] == [
        "swapped to spare n3, back in 7.3 s, 4 training steps lost",
        "requeued, now with n4, back in 13.6 s, 7 training steps lost",
        "guard took over, now with n5, back in 7.8 s, 13 training steps lost",
        "every loss equal bit for bit to the uninterrupted run (84 compared)",
    ]


def test_ettr_counts_only_training_steps_that_were_not_lost() -> None:
    summary = summarise(THREE)
    assert summary.productive_s == pytest.approx(60 * 0.5)
    events = read(THREE / "journal.jsonl")
    first = next(e["time"] for e in events if e["event"] == "attempt_started")
    assert summary.ettr == pytest.approx(30.0 / (events[-1]["time"] - first))


def test_lanes_say_which_node_did_what() -> None:
    lanes = {lane.node: [s.state for s in lane.segments] for lane in summarise(THREE).lanes}
    assert lanes["n2"] == ["starting", "training", "waiting", "lost"]
    assert lanes["n3"] == ["spare", "starting", "training", "waiting", "unfit"]
    assert lanes["n5"] == ["spare", "starting", "training"]
    assert lanes["n8"] == []


def test_one_mutated_loss_is_reported_as_not_identical(three: Path) -> None:
    rows = read(three / "metrics.jsonl")
    rows[-1]["loss"] += 2**-51  # the last bit of a number between 2 and 4
    write(three / "metrics.jsonl", rows)
    summary = write_report(three, baseline=UNINTERRUPTED)
    assert summary.loss_identical is False
    assert summary.samples_identical is True
    page = (three / "report.html").read_text()
    assert "losses DIFFER" in page
    assert "first at training step 60" in page
    assert "every loss equal" not in page


def test_mutated_samples_are_reported(three: Path) -> None:
    rows = read(three / "metrics.jsonl")
    rows[20]["samples"] = "other"
    write(three / "metrics.jsonl", rows)
    summary = summarise(three, baseline=UNINTERRUPTED)
    assert (summary.loss_identical, summary.samples_identical) == (True, False)


def test_repeated_training_steps_are_compared_without_a_baseline(three: Path) -> None:
    assert summarise(three).repeated.losses_identical is True
    rows = read(three / "metrics.jsonl")
    lost = next(row for row in rows if row["attempt"] == 1 and row["step"] == 12)
    lost["loss"] += 1e-9
    write(three / "metrics.jsonl", rows)
    repeated = summarise(three).repeated
    assert repeated.num_different == 1
    assert "training step 12" in str(repeated.first_difference)


def test_equal_is_not_claimed_while_training_steps_are_missing(three: Path) -> None:
    rows = [row for row in read(three / "metrics.jsonl") if row["step"] < 60]
    write(three / "metrics.jsonl", rows)
    assert summarise(three, baseline=UNINTERRUPTED).loss_identical is False


def test_torn_lines_are_left_out_and_noted(three: Path) -> None:
    for name in ("journal.jsonl", "metrics.jsonl"):
        with (three / name).open("a") as file:
            file.write('{"time": 1760000099.5, "eve')
    summary = summarise(three)
    assert summary.outcome == "done"
    assert [note.split(":")[0] for note in summary.records.notes] == [
        "journal.jsonl",
        "metrics.jsonl",
    ]


def test_lines_of_a_replaced_supervisor_are_left_out(three: Path) -> None:
    with (three / "journal.jsonl").open("a") as file:
        late = {"time": 1.0, "event": "stopped", "token": 1, "why": "zombie"}
        file.write(json.dumps(late) + "\n")
    summary = summarise(three)
    assert summary.outcome == "done"
    assert "replaced supervisor" in summary.records.notes[0]


def test_clock_that_steps_back_makes_no_negative_time(three: Path) -> None:
    journal, metrics = read(three / "journal.jsonl"), read(three / "metrics.jsonl")
    for row in journal:
        for key in {"time", "step_time", "detected_at"} & set(row):
            row[key] -= 3600 if row["token"] == 3 else 0
    for row in metrics:
        row["time"] -= 3600 if row["attempt"] == 4 else 0
    write(three / "journal.jsonl", journal)
    write(three / "metrics.jsonl", metrics)
    summary = summarise(three)
    assert 55 < summary.wall_s < 80  # what lay between two lines across the step is lost
    assert all(
        i.phases is not None and min(vars(i.phases).values()) >= 0 for i in summary.incidents
    )
    assert all(s.end >= s.start for lane in summary.lanes for s in lane.segments)
    assert "steps back by 35" in " ".join(summary.records.notes)


def test_requeue_without_an_incident_is_found(make: Callable[..., Path]) -> None:
    run_dir = make(
        [
            ("supervisor_started", 0, {"reason": "first", "host": "n1"}),
            ("attempt_started", 1, started(1, 0, "n1")),
            ("supervisor_started", 50, {"reason": "requeued", "host": "n2"}),
            ("attempt_started", 52, started(2, 2, "n2")),
            ("first_step", 55, {"attempt": 2, "step": 3, "step_time": 154.0}),
            ("done", 60, {"step": 3}),
        ],
        [(1, 1, 3), (1, 2, 4), (1, 3, 5), (2, 3, 54)],
    )
    [incident] = summarise(run_dir).incidents
    assert (incident.cause, incident.verdict, incident.lost_steps) == (
        "supervisor_lost",
        "requeue",
        1,
    )
    assert incident.phases is not None
    assert vars(incident.phases) == {
        "detect_s": 45,
        "decide_s": 2,
        "launch_s": 1,
        "first_step_s": 1,
    }


def test_failed_launch_prolongs_the_recovery_before_it(make: Callable[..., Path]) -> None:
    lost = {"attempt": 1, "cause": "node_lost", "node": "n2", "last_step": 1, "last_step_time": 103}
    failed = {"attempt": 2, "cause": "launch_failed", "node": "n3", "detected_at": 112}
    run_dir = make(
        [
            ("attempt_started", 1, started(1, 0, "n1", "n2")),
            ("incident", 5, {**lost, "detected_at": 105}),
            (
                "attempt_ended",
                5,
                {"attempt": 1, "action": "swap", "cause": "node_lost", "node": "n2"},
            ),
            ("attempt_started", 6, started(2, 0, "n1", "n3")),
            ("incident", 12, failed),
            ("attempt_ended", 12, {"attempt": 2, "action": "retry", "cause": "launch_failed"}),
            ("attempt_started", 13, started(3, 0, "n1", "n3")),
            ("done", 20, {"step": 1}),
        ],
        [(1, 1, 3), (3, 1, 16)],
    )
    first, second = (i.phases for i in summarise(run_dir).incidents)
    assert first is not None
    assert second is not None
    assert (first.total_s, first.launch_s, second.total_s) == (13, 9, 4)


def test_incident_that_training_survives_is_no_interruption(make: Callable[..., Path]) -> None:
    run_dir = make(
        [
            ("attempt_started", 0, started(1, 0, "n1")),
            ("incident", 2, {"attempt": 1, "cause": "node_lost", "node": "n9", "detected_at": 102}),
            ("attempt_ended", 9, {"attempt": 1, "action": "done"}),
            ("done", 9, {}),
        ],
        [(1, 1, 1), (1, 2, 5)],
    )
    summary = summarise(run_dir)
    assert [i.interrupted for i in summary.incidents] == [False]
    assert summary.mttr_s is None


def test_incident_that_a_running_attempt_survived_is_no_interruption(
    make: Callable[..., Path],
) -> None:
    run_dir = make(
        [
            ("attempt_started", 0, started(1, 0, "n1")),
            ("incident", 2, {"attempt": 1, "cause": "node_lost", "node": "n9", "detected_at": 102}),
        ],
        [(1, 1, 1), (1, 2, 5)],
    )
    assert [i.interrupted for i in summarise(run_dir).incidents] == [False]


def test_run_still_going_on_has_an_open_incident(make: Callable[..., Path]) -> None:
    run_dir = make(
        [
            ("attempt_started", 0, started(1, 0, "n1")),
            ("incident", 9, {"attempt": 1, "cause": "hang", "node": "n1", "detected_at": 109}),
        ],
        [(1, 1, 1)],
    )
    summary = summarise(run_dir)
    assert (summary.outcome, summary.incidents[0].recovered) == ("going on", False)


def test_fault_that_no_incident_answers_is_not_recovered() -> None:
    fault = {"time": 1.0, "name": "cut", "node": "n7", "kind": "cable"}
    row = summarise(THREE, faults=[fault]).as_json()
    assert (row["injected"], row["recovered"], row["faults"][0]["verdict"]) == (1, 0, None)


def test_second_command_does_not_lose_the_first_ones_steps(make: Callable[..., Path]) -> None:
    run_dir = make(
        [
            ("attempt_started", 0, started(1, 0, "n1")),
            ("attempt_ended", 3, {"attempt": 1, "action": "done"}),
            ("attempt_started", 4, {**started(2, 0, "n1"), "command": "other"}),
            ("done", 9, {}),
        ],
        [(1, 1, 1), (1, 2, 2), (2, 1, 5)],
    )
    summary = summarise(run_dir)
    assert (summary.lost_steps, summary.incidents, summary.productive_s) == (0, (), 3.0)


def test_run_without_a_journal_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no journal.jsonl in it. Fix: ") as error:
        write_report(tmp_path)
    assert "\n" not in str(error.value)


def test_baseline_without_training_steps_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics.jsonl: holds no training step. Fix: "):
        summarise(THREE, baseline=tmp_path)


def test_metrics_may_be_missing(three: Path) -> None:
    (three / "metrics.jsonl").unlink()
    summary = write_report(three)
    assert [i.lost_steps for i in summary.incidents] == [4, 7, 13]
    assert "metrics.jsonl is missing" in summary.records.notes


def test_picture_and_page_are_written_and_self_contained(three: Path, tmp_path: Path) -> None:
    write_report(three, tmp_path / "out", baseline=UNINTERRUPTED)
    png = (tmp_path / "out" / "report.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20], "big") == 2400
    page = (tmp_path / "out" / "report.html").read_text()
    for words in (
        "power loss of n2 (worker)",
        "swapped to spare n3",
        "every loss equal bit for bit",
    ):
        assert words in page
    assert "http" not in page
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["recovered"] == 3


def test_text_of_the_run_is_escaped(three: Path) -> None:
    rows = read(three / "journal.jsonl")
    for row in rows:
        if row["event"] in ("incident", "run_started"):
            row["detail"] = row["recipe"] = "<script>$x$</script>"
    write(three / "journal.jsonl", rows)
    write_report(three)
    page = (three / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("num", [0, 1, 4, 5, 14, 40])
def test_any_number_of_incidents_can_be_drawn(make: Callable[..., Path], num: int) -> None:
    journal: list[tuple[Any, ...]] = []
    steps = []
    for i in range(num + 1):
        t = 10 * i
        journal.append(("attempt_started", t, started(i + 1, i, f"n{i}", f"n{i + 1}")))
        steps.append((i + 1, i + 1, t + 2))
        if i < num:
            facts = {"attempt": i + 1, "cause": "node_lost", "node": f"n{i}"}
            journal.append(("incident", t + 4, {**facts, "detected_at": 104.0 + t}))
            journal.append(("attempt_ended", t + 5, {**facts, "action": "swap"}))
    summary = write_report(make(journal, steps))
    assert len(summary.interruptions) == num
    assert all(incident.recovered for incident in summary.incidents)


def test_nothing_but_a_first_line_can_be_drawn(make: Callable[..., Path]) -> None:
    summary = write_report(make([("supervisor_started", 0, {})]))
    assert (summary.ettr, summary.last_step) == (None, None)


def test_losses_that_are_not_numbers_can_be_drawn(three: Path) -> None:
    rows = read(three / "metrics.jsonl")
    rows[3]["loss"], rows[4]["loss"], rows[5]["loss"] = float("nan"), None, float("inf")
    write(three / "metrics.jsonl", rows)
    assert write_report(three).repeated.losses_identical is True


def test_without_matplotlib_one_line_says_what_to_install(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith(("matplotlib", "resume.report.picture"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnavailableError, match="Fix: pip install matplotlib"):
        write_report(three)


def test_place_that_cannot_be_written_is_one_line(three: Path) -> None:
    with pytest.raises(CreateError, match="Fix: name a folder"):
        write_report(three, three / "journal.jsonl")


def test_what_a_person_changed_is_marked_and_no_measure_for_what_follows(
    make: Callable[..., Path],
) -> None:
    """Training steps 3 and 4 are done again with another rate: other losses are no difference."""
    run_dir = make(
        [
            ("run_started", 0, {"recipe": "r"}),
            ("attempt_started", 1, started(1, 0, "n1")),
            ("checkpoint_chosen", 6, {"to_step": 2, "user": "alice", "checkpoints": []}),
            ("attempt_started", 7, started(2, 2, "n1")),
            ("changed", 9, {"attempt": 2, "step": 3, "user": "alice", "changes": {"lr": [2, 1]}}),
            ("done", 12, {"step": 5}),
        ],
        [(1, s, 1 + s) for s in (1, 2, 3, 4)] + [(2, s, 6 + s) for s in (3, 4, 5)],
    )
    lines = read(run_dir / "metrics.jsonl")
    write(
        run_dir / "metrics.jsonl", [{**row, "loss": row["loss"] * row["attempt"]} for row in lines]
    )
    summary = summarise(run_dir)
    assert summary.as_json()["changes"] == [
        {"user": "alice", "attempt": None, "step": 2, "settings": {}},
        {"user": "alice", "attempt": 2, "step": 3, "settings": {"lr": [2, 1]}},
    ]
    assert summary.repeated.num_compared == 0
    pytest.importorskip("matplotlib")
    write_report(run_dir)
    page = (run_dir / "report.html").read_text()
    assert "Changed by a person" in page
    assert "lr 2 → 1" in page
    assert "goes on from training step 2" in page
    rows = [row for row in read(run_dir / "journal.jsonl") if row["event"] != "changed"]
    write(run_dir / "journal.jsonl", rows)
    assert summarise(run_dir).repeated.losses_identical is False
