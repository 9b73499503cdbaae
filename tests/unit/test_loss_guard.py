"""The loss guard: what it calls wrong, how far it goes back, and what it leaves out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.recipe import Budget, LossGuard, load_recipe
from resume import journal, skips
from resume.checkpoint import step_name
from resume.loss_guard import Finding, LossWatch, comparable, plan
from resume.metrics import MetricsTail
from resume.run import Run
from resume.verdict import Evidence, culprit, decide

RULES = LossGuard(action="rollback")


def feed(watch: LossWatch, losses: list[float], first: int = 1) -> Finding | None:
    for step, loss in enumerate(losses, start=first):
        found = watch.take(step, loss)
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_not_finite(loss: float) -> None:
    found = feed(LossWatch(RULES, 0), [2.0, loss])
    assert found == Finding("diverged", f"loss {loss} at training step 2", 2, 2)


def test_a_spike_is_high_for_some_steps_in_a_row() -> None:
    usual = [2.0 + 0.01 * (n % 7) for n in range(30)]
    found = feed(LossWatch(RULES, 0), [*usual, 4.2, 4.3, 4.4])
    assert found is not None
    assert (found.cause, found.first, found.last) == ("loss_spike", 31, 33)
    for quiet in ([4.2, 4.3, 2.0, 4.2, 4.3], [3.9] * 9, [9.0, 2.0] * 9):
        assert feed(LossWatch(RULES, 0), [*usual, *quiet]) is None


def test_too_few_losses_or_a_negative_one_tell_nothing() -> None:
    assert feed(LossWatch(RULES, 0), [2.0] * 9 + [90.0] * 9) is None
    assert feed(LossWatch(RULES, 0), [-2.0] * 30 + [90.0] * 9) is None


def test_a_falling_loss_is_no_spike_and_a_resume_does_not_forget_what_is_usual() -> None:
    falling = [9.0 / (1 + n / 20) for n in range(400)]
    assert feed(LossWatch(RULES, 0), falling) is None
    before = dict(enumerate(falling[:200], start=1))
    found = feed(LossWatch(RULES, 200, before), [5.0] * 3, first=201)
    assert found is not None
    assert (found.cause, found.first) == ("loss_spike", 201)


@pytest.mark.parametrize(
    ("losses", "rtol", "bad_at"),
    [
        ([3.0, 2.9, 2.8], 0.0, None),  # bit for bit
        ([3.01, 2.9, 2.8], 0.02, None),
        ([3.2, 2.9, 2.8], 0.02, 11),
        ([3.0, 2.9, 3.8], 0.02, 13),  # the optimizer's state was wrong: seen a little later
        ([3.0, 2.9, 2.8, 9.0], 0.02, None),  # only the first three are compared
        ([3.0 + 1e-12, 2.9, 2.8], 0.0, 11),
    ],
)
def test_first_losses_after_a_resume(losses: list[float], rtol: float, bad_at: int | None) -> None:
    before = {11: 3.0, 12: 2.9, 13: 2.8, 14: 2.7}
    watch = LossWatch(LossGuard(action="rollback", resume_rtol=rtol), 10, before)
    found = feed(watch, losses, first=11)
    assert (found.last if found else None) == bad_at
    if found is not None:
        assert (found.cause, found.first, found.data_is_suspect) == ("loss_mismatch", 10, False)


def test_without_a_resume_or_without_a_loss_of_before_nothing_is_compared() -> None:
    assert feed(LossWatch(RULES, 0, {1: 9.0}), [2.0]) is None
    assert feed(LossWatch(RULES, 10, {1: 9.0}), [2.0, 2.0], first=11) is None


def test_only_losses_on_the_same_data_are_comparable() -> None:
    lines: list[dict[str, Any]] = [
        {"step": 9, "loss": 3.0},
        {"step": 10, "loss": 9.0, "batch": 10},  # before the rollback
        {"step": 10, "loss": 2.9, "batch": 13},
        {"step": 11, "loss": math.nan, "batch": 14},
        {"step": 12, "loss": "x", "batch": 15},
        {"loss": 1.0},
    ]
    assert comparable(lines, [(10, 12)]) == {9: 3.0, 10: 2.9}
    assert comparable(lines, []) == {9: 3.0, 10: 9.0}


PLANS = [
    # first, last, back, published, windows -> to_step, aside, skip
    (12, 14, 1, [5, 10], [], (10, [], "11-14")),
    (12, 14, 2, [5, 10], [], (5, [10], "6-14")),
    (12, 14, 9, [5, 10], [], (5, [10], "6-14")),  # as far as there is
    (12, 16, 1, [5, 10, 15], [], (10, [15], "11-16")),  # 15 is of within the spike
    (10, 12, 1, [5, 10], [], (5, [10], "6-12")),  # 10 holds what it did to the weights
    (3, 3, 1, [5], [], None),
    (3, 3, 1, [], [], None),
    (12, 14, 1, [5, 10], [(6, 9)], (10, [], "15-18")),  # batches, not training steps
    (8, 9, 1, [5], [(7, 9)], (5, [], "6-12")),  # swallows the window of before
]


@pytest.mark.parametrize(("first", "last", "back", "published", "windows", "wanted"), PLANS)
def test_the_way_back(  # noqa: PLR0917  (a row of the table)
    first: int, last: int, back: int, published: list[int],
    windows: list[skips.Window], wanted: tuple[int, list[int], str] | None,
) -> None:  # fmt: skip
    rules = LossGuard(action="rollback", back=back)
    way = plan(Finding("loss_spike", "", first, last), published, rules, windows)
    if wanted is None:
        assert way is None
    else:
        assert way is not None
        aside = [step_name(step) for step in sorted(wanted[1], reverse=True)]
        assert (way.to_step, list(way.aside), way.skip) == (wanted[0], aside, wanted[2])


def test_a_wrong_state_goes_one_checkpoint_back_and_blames_no_data() -> None:
    rules = LossGuard(action="rollback", back=2)
    way = plan(Finding("loss_mismatch", "", 15, 16), [5, 10, 15], rules, [])
    assert way is not None
    assert (way.to_step, way.aside, way.skip) == (10, (step_name(15),), "")


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8), st.integers(1, 3)), max_size=5))
def test_any_series_of_rollbacks_leaves_every_other_batch_to_be_trained_once(
    series: list[tuple[int, int, int]],
) -> None:
    windows: list[skips.Window] = []
    for first, length, back in series:
        published = range(5, first + length + 1, 5)
        way = plan(
            Finding("loss_spike", "", first, first + length),
            published, LossGuard(back=back), windows,
        )  # fmt: skip
        if way is None:
            continue
        trained_before = [skips.batch_of(step, windows) for step in range(1, way.to_step + 1)]
        suspects = {skips.batch_of(s, windows) for s in range(way.to_step + 1, first + length + 1)}
        windows = skips.merged([*windows, *skips.parse(way.skip)])
        assert [skips.batch_of(s, windows) for s in range(1, way.to_step + 1)] == trained_before
        after = {skips.batch_of(step, windows) for step in range(way.to_step + 1, 200)}
        assert not after & suspects


# -- the verdict --------------------------------------------------------------------------------


def evidence(**facts: Any) -> Evidence:
    exits = facts.pop("exits", {0: 76, 1: 143})
    known = {"launcher_rc": 1, "last_step": 12, "max_step": 12, "guards_loss": True}
    return Evidence(
        2, 2, 2, exits=exits, first_failed=culprit(exits), max_rollbacks=3, **{**known, **facts}
    )


SPIKE = Finding("loss_spike", "loss 9 at training step 12, 2 is usual", 10, 12)


@pytest.mark.parametrize(
    ("facts", "action", "cause", "first"),
    [
        ({}, "rollback", "diverged", 13),  # the step that failed was not logged
        ({"exits": {}, "loss": SPIKE}, "rollback", "loss_spike", 10),
        ({"loss": SPIKE}, "rollback", "loss_spike", 10),
        ({"guards_loss": False}, "retry", "diverged", None),
        ({"guards_loss": False, "same_place": 1}, "stop", "diverged", None),
        ({"rollbacks": 3}, "stop", "diverged", None),
        ({"no_progress": 7}, "stop", "diverged", None),
        ({"lost": ("n2",)}, "swap", "node_lost", None),  # hardware first
        ({"done_file": True, "loss": SPIKE}, "done", None, None),
        ({"exits": {0: 1}}, "retry", "rank_failed", None),
    ],
)
def test_verdict(facts: dict[str, Any], action: str, cause: str | None, first: int | None) -> None:
    verdict = decide(evidence(**facts), Budget())
    assert (verdict.action, verdict.cause) == (action, cause)
    assert (verdict.loss.first if verdict.loss else None) == first


def test_a_retry_of_a_diverged_run_is_counted_as_the_programs_failure() -> None:
    assert decide(evidence(guards_loss=False, max_step=3), Budget()).repeatable


# -- what carries it ----------------------------------------------------------------------------


def test_losses_of_this_attempt_come_out_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step":1,"loss":9.5,"time":1,"attempt":1}\n{"step":1,"loss":2,"time":2,"attempt":2}\n'
        '{"step":2,"loss":NaN,"time":3,"attempt":2}\n{"step":3,"time":4,"attempt":2}\n'
    )
    tail = MetricsTail(path, 2)
    tail.poll()
    (one, first), (two, second) = tail.take_losses()
    assert (one, first, two) == (1, 2.0, 2)
    assert math.isnan(second)
    assert tail.take_losses() == []


def test_the_journal_remembers_windows_rollbacks_and_what_is_not_to_be_picked() -> None:
    back = {
        "event": "rolled_back", "why": "", "cause": "diverged", "to_step": 5, "skip": "6-9",
        "checkpoints": [step_name(10)],
    }  # fmt: skip
    verified = {"event": "checkpoint_verified", "checkpoint": step_name(10), "tier": "shared"}
    state = journal.fold([verified, back])
    assert (state.rollbacks, state.windows, state.verified) == (1, [(6, 9)], set())
    assert state.rolling_back == [step_name(10)]
    started = {"event": "attempt_started", "attempt": 2, "nodes": ["n1"]}
    state = journal.fold([verified, back, started, {**back, "skip": "10-12"}])
    assert (state.rollbacks, state.windows) == (2, [(6, 12)])
    assert journal.fold([verified, back, started]).rolling_back == []


def test_a_rank_learns_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_SKIP", "3-5")
    run = Run.from_env()
    assert [run.batch(step) for step in (1, 2, 3, 4)] == [1, 2, 6, 7]
    run.log_metrics({"step": 3, "loss": 1.0})
    assert '"batch": 6' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["loss_guard.action=rolback"], "is unknown"),
        (["loss_guard.back=0"], "below 1"),
        (["loss_guard.spike_factor=1"], "above 1"),
        (["loss_guard.resume_rtol=-1"], "below 0"),
        (["loss_guard.action=rollback", "loss_guard.back=3"], "but only 3 are kept"),
        (["checkpoints.keep=0"], "below 1"),
        (["checkpoints.keep_every=-1"], "below 0"),
        (["checkpoints.settle_s=0"], "above 0"),
    ],
)
def test_settings_that_cannot_work(words: list[str], said: str, repo_root: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        load_recipe(repo_root / "recipes" / "llama2_fsdp", words)
