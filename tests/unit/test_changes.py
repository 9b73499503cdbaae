"""What a person changes at a restart is written down, and a chosen checkpoint is gone back to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import resume
from muster.errors import DataError
from muster.recipe import LossGuard
from resume import changes, journal
from resume.loss_guard import LossWatch, comparable
from tests.harness.checkpoints import publish


class Supervisor:
    """As much of it as `changes` needs; its journal is a list."""

    def __init__(self, run_dir: Path, job: str = "7", from_step: int | None = None) -> None:
        self.run_dir, self.from_step = run_dir, from_step
        self.done_file = run_dir / "DONE"
        self.job = SimpleNamespace(job_id=job)
        commands = [SimpleNamespace(name=n, done_by=d) for n, d in (("a", "exit"), ("t", "DONE"))]
        self.recipe = SimpleNamespace(commands=commands)
        self.state = journal.State()
        self.said: list[str] = []
        self.entries: list[dict[str, Any]] = []

    def note(self, event: str, **facts: Any) -> None:
        self.entries.append({"event": event, **facts})
        self.state.note(self.entries[-1])

    def say(self, text: str) -> None:
        self.said.append(text)

    def in_background(self, work: Callable[[], Any]) -> Any:
        return work()


def settings(run_dir: Path, attempt: int, **values: Any) -> None:
    run = resume.Run(
        dir=run_dir, recipe_dir=run_dir, resume=None, attempt=attempt, token=1, rank=0,
        local_rank=0, world_size=1, beat_dir=None,
    )  # fmt: skip
    run.note_settings(values)


def test_what_differs_from_the_attempt_before_is_written_down(tmp_path: Path) -> None:
    s: Any = Supervisor(tmp_path)

    def step(attempt: int, first_step: int) -> bool:
        found = changes.note_changes(s, attempt, first_step)
        s.note("first_step", attempt=attempt)
        return found

    settings(tmp_path, 1, lr=0.1, batch=16, gone=1)
    assert not step(1, 1)
    settings(tmp_path, 2, lr=0.1, batch=16, gone=1)
    assert not step(2, 11)
    settings(tmp_path, 3, lr=0.05, batch=16, new="x")  # did not come to a training step
    settings(tmp_path, 4, lr=0.05, batch=16, new="x")
    assert step(4, 31)
    (entry,) = [entry for entry in s.entries if entry["event"] == "changed"]
    assert entry["changes"] == {"gone": [1, None], "lr": [0.1, 0.05], "new": [None, "x"]}
    assert (entry["attempt"], entry["step"], entry["job"]) == (4, 31, "7")
    assert entry["user"] == changes.user()
    told = "gone from 1 to None, lr from 0.1 to 0.05, new from None to x"
    assert s.said == [f"changed from training step 31 on: {told}"]
    assert s.state.changed_in == 4


def test_other_ranks_and_recipes_that_say_nothing_change_nothing(tmp_path: Path) -> None:
    s: Any = Supervisor(tmp_path)
    assert not changes.note_changes(s, 5, 1)
    s.state.stepped_in = 4
    settings(tmp_path, 4, lr=1)
    assert not changes.note_changes(s, 5, 1)
    (tmp_path / "settings" / "attempt_005.json").write_text("{torn")
    assert not changes.note_changes(s, 5, 1)
    assert s.entries == []


def test_losses_of_before_a_change_are_no_measure() -> None:
    """Attempt 1 went to 30, attempt 2 began at 10 with another rate, attempt 3 resumes there."""
    lines = [{"attempt": 1, "step": n, "loss": 1.0} for n in range(1, 31)]
    lines += [{"attempt": 2, "step": 11, "loss": 2.0}]
    same = changes.of_these_settings(lines, 2, 10)
    before = comparable(same, [])
    assert before == {**dict.fromkeys(range(1, 11), 1.0), 11: 2.0}
    assert comparable(changes.of_these_settings(lines, 0, 10), [])[12] == 1.0
    watch = LossWatch(LossGuard(action="rollback"), 10, comparable(lines, []))
    wrong = LossWatch(LossGuard(action="rollback"), 10, comparable(lines, []))
    watch.compare_no_more()
    assert watch.take(12, 1.5) is None
    assert getattr(wrong.take(12, 1.5), "cause", None) == "loss_mismatch"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for step in (10, 20, 30):
        publish(tmp_path / "checkpoints", step)
    return tmp_path


def test_a_chosen_checkpoint_is_gone_back_to_once(run_dir: Path) -> None:
    s: Any = Supervisor(run_dir, from_step=20)
    s.state.verified, s.state.archived = {10, 20, 30}, {20, 30, 40}
    s.state.commands_done, s.state.finished = {"a", "t"}, True
    s.done_file.write_text("{}")
    changes.go_back(s)
    (entry,) = s.entries
    assert entry["event"] == "checkpoint_chosen"
    assert entry["checkpoints"] == ["step_00000030", "step_00000040"]
    assert s.state.rolling_back == entry["checkpoints"]
    assert (s.state.verified, s.state.archived) == ({10, 20}, {20})
    assert s.state.commands_done == {"a"}  # what is done by exit code is not done again
    assert s.state.rollbacks == 0  # the loss guard's budget is not touched
    assert [path.name for path in run_dir.glob("DONE*")] == ["DONE.1"]

    changes.go_back(s)  # the job was requeued before its attempt
    assert len(s.entries) == 1
    s.note("attempt_started", attempt=2, nodes=["n1"])
    s.done_file.write_text("{}")  # now it is done again
    changes.go_back(s)
    assert s.done_file.exists()
    assert len(s.entries) == 2
    assert s.state.rolling_back == []

    other: Any = Supervisor(run_dir, job="8", from_step=10)
    other.state = journal.fold(s.entries)
    changes.go_back(other)
    assert other.entries[-1]["to_step"] == 10


@pytest.mark.parametrize(
    ("step", "damage", "part"),
    [(15, False, "use one of: 10, 20, 30"), (20, True, "it does not verify")],
)
def test_a_checkpoint_that_is_not_there_or_bad_is_refused(
    run_dir: Path, step: int, damage: bool, part: str
) -> None:
    if damage:
        (run_dir / "checkpoints" / "step_00000020" / "shard_0.bin").write_bytes(b"other")
    s: Any = Supervisor(run_dir, from_step=step)
    with pytest.raises(DataError, match=part) as caught:
        changes.go_back(s)
    assert "\n" not in str(caught.value)
    assert s.entries == []
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir())[1] == "step_00000020"


def test_without_the_word_nothing_happens(run_dir: Path) -> None:
    s: Any = Supervisor(run_dir)
    s.done_file.write_text("{}")
    changes.go_back(s)
    assert s.entries == []
    assert s.done_file.exists()
