"""The audit proves any honest run, however often it was interrupted, and catches any cheat."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import cli
from resume import skips
from resume.audit import Audit, audit

Lines = list[dict[str, Any]]
DATA = Path(__file__).resolve().parents[1] / "data" / "report"


def line(attempt: int, step: int, batch: int | None = None) -> dict[str, Any]:
    batch = step if batch is None else batch
    digest = hashlib.sha256(str(batch).encode()).hexdigest()[:16]
    return {"attempt": attempt, "step": step, "batch": batch, "samples": digest, "loss": 1.0}


def started(attempt: int, step: int, publisher: int | None = None) -> dict[str, Any]:
    return {
        "event": "attempt_started", "time": 0, "attempt": attempt, "resume_step": step,
        "resume_attempt": publisher,
    }  # fmt: skip


def simulate(seed: int, steps: int = 40, every: int = 5) -> tuple[Lines, Lines]:
    """A run whose attempts die anywhere, whose checkpoints go bad, and which rolls back."""
    dice = random.Random(seed)
    entries: Lines = []
    metrics: Lines = []
    published: dict[int, int] = {}  # training step -> attempt
    windows: list[skips.Window] = []
    for attempt in range(1, 60):
        while published and dice.random() < 0.2:
            published.pop(max(published))
        if published and len(published) > 1 and dice.random() < 0.15:  # a spike
            published.pop(max(published))
            back, reached = max(published), max(m["step"] for m in metrics)
            first = skips.batch_of(back + 1, windows)
            last = skips.batch_of(max(back + 1, reached), windows)
            windows = skips.merged([*windows, (first, last)])
            entries.append({"event": "rolled_back", "time": 0, "skip": f"{first}-{last}"})
        step = max(published, default=0)
        entries.append(started(attempt, step, published.get(step)))
        dies_at = steps if attempt == 59 else dice.randint(step, steps + 10)
        while step < min(dies_at, steps):
            step += 1
            metrics.append(line(attempt, step, skips.batch_of(step, windows)))
            if step % every == 0:
                published.setdefault(step, attempt)
        if step == steps:
            break
    return entries, metrics


@given(st.integers(0, 10**9))
def test_an_honest_run_is_proven(seed: int) -> None:
    entries, metrics = simulate(seed)
    found = audit(entries, metrics, done=True)
    assert found.problems == ()
    assert (found.last_step, found.num_batches) == (40, 40)
    assert found.segments[0].first == 1
    for one, other in zip(found.segments, found.segments[1:], strict=False):
        assert other.first == one.last + 1
    assert found.num_lost == len(metrics) - 40


def in_the_weights(found: Audit, entry: dict[str, Any]) -> bool:
    return any(
        s.attempt == entry["attempt"] and s.first <= entry["step"] <= s.last for s in found.segments
    )


CHEATS = ("line dropped", "line doubled", "other samples", "samples of another batch", "no digest")


@given(st.integers(0, 10**9), st.sampled_from(CHEATS), st.data())
def test_a_cheat_is_caught(seed: int, cheat: str, data: st.DataObject) -> None:
    entries, metrics = simulate(seed)
    effective = [m for m in metrics if in_the_weights(audit(entries, metrics, done=True), m)]
    victim = data.draw(st.sampled_from(effective[:-1]))
    if cheat == "line dropped":
        metrics.remove(victim)
    elif cheat == "line doubled":
        metrics.append(dict(victim))
    elif cheat == "other samples":
        victim["samples"] = effective[-1]["samples"]
    elif cheat == "samples of another batch":
        victim["batch"] = effective[-1]["batch"]
    else:
        del victim["samples"]
    assert not audit(entries, metrics, done=True).proven


def problems(entries: Lines, metrics: Lines) -> tuple[str, ...]:
    return audit(entries, metrics, done=False).problems


def test_missing_and_doubled_samples_are_named() -> None:
    one = [started(1, 0)]
    lost = [line(1, 1), line(1, 2), line(1, 5)]
    assert problems(one, lost) == (
        "attempt 1: metrics.jsonl has no line for training steps 3-4",
        "not trained on: batches 3-4",
    )
    again = [line(1, 1), line(1, 2, batch=1), line(1, 3)]
    assert problems(one, again) == (
        "trained on more than once: batches 1",
        "not trained on: batches 2",
        "the same samples at training steps 1-2",
    )


def test_a_step_of_a_lost_attempt_with_other_samples_is_a_problem() -> None:
    entries = [started(1, 0), started(2, 2, 1)]
    odd = {**line(1, 3), "samples": "something else"}
    metrics = [line(1, 1), line(1, 2), odd, line(2, 3)]
    assert problems(entries, metrics) == ("attempts saw other samples in batches 3",)


def test_the_manifest_says_who_trained_what_is_in_the_weights() -> None:
    """Attempt 2 trained 3 and 4 again, but the checkpoint of 4 is that of attempt 1."""
    entries = [started(1, 0), started(2, 2, 1), started(3, 4, 1)]
    metrics = [line(1, n) for n in (1, 2, 3, 4)] + [line(2, n) for n in (3, 4)] + [line(3, 5)]
    found = audit(entries, metrics, done=False)
    assert [(s.attempt, s.first, s.last) for s in found.segments] == [(1, 1, 4), (3, 5, 5)]
    entries[2]["resume_attempt"] = None  # a journal of before
    found = audit(entries, metrics, done=False)
    assert [s.attempt for s in found.segments] == [1, 2, 3]


def test_an_attempt_that_never_trained_still_says_where_the_weights_are() -> None:
    """The newest checkpoint was bad: what attempt 1 did after training step 2 is lost."""
    entries = [started(1, 0), started(2, 2, 1)]
    found = audit(entries, [line(1, n) for n in range(1, 6)], done=False)
    assert (found.proven, found.last_step, found.num_lost) == (True, 2, 3)


def test_checkpoints_of_another_run() -> None:
    assert problems([started(1, 2, 7)], [line(1, 3)]) == (
        "training steps 1-2 are not of this run: nobody trained them",
        "not trained on: batches 1-2",
    )


def test_skipped_windows_are_accounted_for_and_kept_to() -> None:
    back = {"event": "rolled_back", "time": 0, "skip": "3-5"}
    entries = [started(1, 0), back, started(2, 2, 1)]
    metrics = [line(1, n) for n in range(1, 6)] + [line(2, 3, 6), line(2, 4, 7)]
    found = audit(entries, metrics, done=False)
    assert (found.proven, found.skipped, found.num_batches) == (True, ((3, 5),), 4)
    metrics[-2:] = [line(2, 3, 5), line(2, 4, 6)]
    assert problems(entries, metrics) == ("to be skipped, but trained on: batches 5",)
    for entry in metrics:
        del entry["batch"]
    assert problems(entries, metrics) == (
        "data was skipped, but lines of metrics.jsonl do not name their batch",
    )


def test_torn_and_foreign_lines_are_passed_over() -> None:
    metrics = [line(1, 1), {"step": "x"}, {"attempt": 1}, {"note": 1}]
    assert audit([started(1, 0)], metrics, done=False).proven


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([str(DATA / "three_incidents")], 0, "proven: each sample of 60 batches exactly once"),
        (["--json", str(DATA / "three_incidents")], 0, '"proven": true'),
        (["/nowhere"], 65, ""),
    ],
)
def test_the_verb(
    words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", *words]) == code
    out, err = capfd.readouterr()
    assert said in out
    assert bool(err) is (code == 65)
    assert err.count("\n") <= 1


def test_exit_code_of_what_is_not_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal.jsonl").write_text(json.dumps(started(1, 0)) + "\n")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(1, 2)) + "\n")
    assert cli.main(["audit", str(tmp_path)]) == 1
    assert "not proven: not trained on: batches 1\n" in capsys.readouterr().out


# -- which batch a training step takes ----------------------------------------------------------

windows = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 9)).map(lambda w: (w[0], w[0] + w[1])), max_size=5
)


@given(windows)
def test_batches_are_all_but_the_windows_in_order(some: list[skips.Window]) -> None:
    left_out = {b for first, last in some for b in range(first, last + 1)}
    wanted = [batch for batch in range(1, 200) if batch not in left_out][:60]
    assert [skips.batch_of(step, some) for step in range(1, 61)] == wanted
    assert skips.parse(skips.text(some)) == skips.merged(some)


@pytest.mark.parametrize("value", ["3", "3-", "x-4", "5-4", "0-2", "1-2,,3-4"])
def test_a_garbled_window_is_refused(value: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (int's own words are good enough)
        skips.parse(value)


def resized(seed: int, steps: int = 40) -> tuple[Lines, Lines]:
    """A run whose attempts die anywhere and begin with another size of batch."""
    dice = random.Random(seed)
    entries: Lines = []
    metrics: Lines = []
    published: dict[int, tuple[int, int]] = {0: (0, 0)}  # training step: attempt, samples before
    for attempt in range(1, 60):
        step = dice.choice([max(published), *published])  # or one that a person has chosen
        published = {s: facts for s, facts in published.items() if s <= step}
        publisher, place = published[step]
        size = dice.choice([4, 8, 12])
        entries.append(started(attempt, step, publisher))
        dies_at = steps if attempt == 59 else dice.randint(step, steps + 10)
        while step < min(dies_at, steps):
            step += 1
            digest = hashlib.sha256(f"{place} {size}".encode()).hexdigest()[:16]
            places = {"first_sample": place, "num_samples": size, "samples": digest}
            metrics.append({**line(attempt, step), **places})
            place += size
            if step % 5 == 0:
                published[step] = (attempt, place)
        if step == steps:
            break
    return entries, metrics


@given(st.integers(0, 10**9))
def test_batches_whose_size_changes_at_a_restart_are_proven(seed: int) -> None:
    entries, metrics = resized(seed)
    found = audit(entries, metrics, done=True)
    assert found.problems == ()
    assert found.sizes[0][0] == 1
    assert found.sizes[-1][1] == found.last_step == 40
    end = metrics[-1]["first_sample"] + metrics[-1]["num_samples"]
    assert sum((last - first + 1) * size for first, last, size in found.sizes) == end


@pytest.mark.parametrize(
    ("shift", "problem"),
    [
        (-4, "samples of the batch before again in batches 21"),
        (4, "samples are left out before batches 21"),
    ],
)
def test_a_size_that_moves_the_data_is_seen(shift: int, problem: str) -> None:
    """The second attempt counts its batches as if all had had the new size, or forgets some."""
    entries = [started(1, 0), started(2, 20, 1)]
    metrics = []
    for step in range(1, 31):
        attempt, size = (1, 8) if step <= 20 else (2, 12)
        first = (step - 1) * 8 if step <= 20 else 160 + shift + (step - 21) * 12
        places = {"first_sample": first, "num_samples": size}
        metrics.append({**line(attempt, step), **places})
    found = audit(entries, metrics, done=True)
    assert found.problems == (problem,)
    assert found.sizes == ((1, 20, 8), (21, 30, 12))
    assert "training steps 21-30: 12 samples each" in found.text()


def test_places_of_batches_around_data_that_is_left_out() -> None:
    entries = [started(1, 0), {"event": "rolled_back", "time": 0, "skip": "3-4"}, started(2, 2, 1)]
    metrics = []
    for step in range(1, 9):
        batch = step if step <= 2 else step + 2
        places = {"first_sample": (batch - 1) * 8, "num_samples": 8}
        metrics.append({**line(1 if step <= 2 else 2, step, batch), **places})
    assert audit(entries, metrics, done=True).problems == ()
    for late in metrics[2:]:
        late["first_sample"] -= 8
    (problem,) = audit(entries, metrics, done=True).problems
    assert problem == "samples of the batch before again in batches 5"


# -- what a person has changed -------------------------------------------------------------------


def changed(attempt: int, **pairs: list[Any]) -> dict[str, Any]:
    named = {name.replace("_", ".", 1): pair for name, pair in pairs.items()}
    return {"event": "changed", "time": 0, "attempt": attempt, "changes": named}


def test_changes_are_those_in_the_weights_and_not_those_of_lost_attempts() -> None:
    """Attempt 2 changed two settings and is lost; attempt 3 kept one, and went back with one."""
    entries = [
        started(1, 0), started(2, 2, 1), changed(2, optim_lr=[1, 2], train_batch=[8, 16]),
        started(3, 2, 1), changed(3, train_batch=[16, 8]), started(4, 4, 3),
    ]  # fmt: skip
    metrics = [line(1, n) for n in (1, 2)] + [line(2, 3)]
    metrics += [line(3, n) for n in (3, 4)] + [line(4, 5)]
    found = audit(entries, metrics, done=False)
    assert found.problems == ()
    assert found.changes == ((3, {"optim.lr": [1, 2]}),)
    assert "changed from training step 3 on: optim.lr from 1 to 2" in found.text()
    assert found.as_json()["changes"] == [[3, {"optim.lr": [1, 2]}]]
    entries[2]["changes"] = "garbled"
    assert audit(entries, metrics, done=False).changes == ((3, {"train.batch": [16, 8]}),)


@pytest.mark.parametrize(
    ("began", "problem"),
    [
        ([0, 2], None),
        (None, None),  # a recipe that does not say it
        ([0, 1], "another optimizer from training step 3 on, but its state begins at 1"),
    ],
)
def test_another_optimizer_begins_its_state_where_it_begins(
    began: list[int] | None, problem: str | None
) -> None:
    more = {} if began is None else {"optim_began_at": began}
    entries = [started(1, 0), started(2, 2, 1), changed(2, optim_kind=["adamw", "sgd"], **more)]
    metrics = [line(1, 1), line(1, 2), line(2, 3)]
    assert problems(entries, metrics) == (() if problem is None else (problem,))
