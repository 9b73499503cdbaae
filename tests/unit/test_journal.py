"""The journal folded: counters, takeovers, torn lines; and verdicts over whole stories of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.recipe import Budget
from resume import journal
from resume.journal import Journal, State, fold, read
from resume.verdict import Evidence, Verdict, decide

Entry = dict[str, Any]


def started(attempt: int, nodes: tuple[str, ...] = ("n1", "n2")) -> Entry:
    return {"event": "attempt_started", "attempt": attempt, "nodes": list(nodes)}


def ended(cause: str | None, last_step: int | None, *, repeatable: bool | None = None) -> Entry:
    known = cause in ("rank_failed", "left_early") if repeatable is None else repeatable
    return {
        "event": "attempt_ended", "cause": cause, "last_step": last_step, "repeatable": known
    }  # fmt: skip


def sup(reason: str = "first") -> Entry:
    return {"event": "supervisor_started", "reason": reason}


def tried(cause: str | None, last_step: int | None, **facts: bool) -> list[Entry]:
    return [started(1), ended(cause, last_step, **facts)]


STORIES: list[tuple[str, list[Entry], dict[str, Any]]] = [
    ("nothing", [], {"attempts": 0, "no_progress": 0, "last_event": None, "finished": False}),
    ("first attempt runs", [sup(), started(1)],
     {"attempts": 1, "unfinished_attempt": 1, "last_nodes": ["n1", "n2"]}),
    ("software at step 7", tried("rank_failed", 7), {
        "max_step": 7, "same_place": 1, "no_progress": 1, "unfinished_attempt": None}),
    ("software twice at step 7", tried("rank_failed", 7) * 2, {"same_place": 2, "no_progress": 2}),
    ("software before any step", tried("rank_failed", None), {"max_step": 0, "same_place": 1}),
    ("software by signal", tried("rank_failed", 7, repeatable=False), {
        "same_place": 0, "no_progress": 1}),
    ("an entry without the word", [{"event": "attempt_ended", "cause": "rank_failed"}], {
        "same_place": 0, "no_progress": 1}),
    ("storage counts for nothing", tried("rank_failed", 7) + tried("storage", 7) * 9, {
        "same_place": 1, "no_progress": 1}),
    ("storage, but farther", tried("rank_failed", 7) + tried("storage", 8), {
        "max_step": 8, "same_place": 0, "no_progress": 0}),
    ("left early", tried("left_early", 7), {"same_place": 1}),
    ("hardware", tried("node_lost", 7), {"same_place": 0, "no_progress": 1}),
    ("hardware, then software, same step", tried("node_lost", 7) + tried("rank_failed", 7), {
        "same_place": 1, "no_progress": 2}),
    ("software, then farther", tried("rank_failed", 7) + tried("rank_failed", 9), {
        "max_step": 9, "same_place": 1, "no_progress": 1}),
    ("software, then less far", tried("rank_failed", 7) + tried("rank_failed", 5), {
        "max_step": 7, "same_place": 2, "no_progress": 2}),
    ("asked to leave, farther", tried("rank_failed", 7) + tried("asked_to_leave", 9), {
        "max_step": 9, "same_place": 0, "no_progress": 0}),
    ("asked to leave, no farther", tried("rank_failed", 7) + tried("asked_to_leave", 7), {
        "same_place": 1, "no_progress": 2}),
    ("requeued for want of fit nodes",
     [{"event": "gate"}, {"event": "incident"}, {"event": "requeued"}] * 2, {"no_progress": 2}),
    ("the controller was away", tried("slurm_away", None) * 9, {"no_progress": 0}),
    ("a suspect", [{"event": "suspect", "node": "n1", "boot": "b", "why": "w"}],
     {"suspects": {"n1": ("b", "w")}}),
    ("a suspect that has booted", [
        {"event": "suspect", "node": "n1", "boot": "b", "why": "w"},
        {"event": "suspect_cleared", "node": "n1"}], {"suspects": {}}),
    ("a person has acted on a suspect", [
        {"event": "suspect", "node": "n1", "boot": "b", "why": "w"}, {"event": "stopped"}],
     {"suspects": {}}),
    ("done", [*tried(None, 30), {"event": "command_done", "command": "train"},
              {"event": "done", "step": 30}],
     {"commands_done": {"train"}, "finished": True, "max_step": 30, "no_progress": 0}),
    ("a finished command clears the slate",
     [*tried("rank_failed", None), {"event": "command_done", "command": "prepare"}],
     {"commands_done": {"prepare"}, "same_place": 0, "no_progress": 0, "finished": False}),
    ("takeover in an attempt counts once",
     [sup(), started(1), sup("takeover"), ended("batch_host_lost", None)],
     {"no_progress": 1, "same_place": 0, "unfinished_attempt": None}),
    ("takeover in an attempt that went on",
     [sup(), started(1), sup("takeover"), ended("batch_host_lost", 12)],
     {"no_progress": 1, "max_step": 12}),
    ("takeover before any attempt counts", [sup(), sup("takeover"), sup("takeover")],
     {"no_progress": 2, "attempts": 0}),
    ("a takeover that died before it wrote the end",
     [sup(), started(1), sup("takeover"), sup("takeover"), ended("supervisor_lost", None)],
     {"no_progress": 1}),
    ("a requeue counts with its attempt",
     [*tried("node_lost", None), {"event": "requeued"}, sup("requeued")], {"no_progress": 1}),
    ("a requeue without an attempt counts itself",
     [sup(), {"event": "gate"}, {"event": "requeued"}] * 3, {"no_progress": 3}),
    ("stopped, and a person starts it again",
     [*tried("rank_failed", 7) * 2, {"event": "stopped"}, sup("requeued")],
     {"same_place": 0, "no_progress": 0, "max_step": 7, "attempts": 1}),
    ("attempts count by number", [started(3), started(4), started(2)], {"attempts": 4}),
    ("unknown events change nothing", [{"event": "weather"}, {"event": None}, {}], {
        "attempts": 0, "no_progress": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "entries", "wanted"), STORIES, ids=[s[0] for s in STORIES])
def test_fold(name: str, entries: list[Entry], wanted: dict[str, Any]) -> None:
    state = fold(entries)
    assert {key: getattr(state, key) for key in wanted} == wanted


def test_noting_one_by_one_is_folding() -> None:
    for _, entries, _ in STORIES:
        state = State()
        for entry in entries:
            state.note(entry)
        assert state == fold(entries)


def test_lines_of_a_journal_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert read(path) == []
    Journal(path, 3).append("gate", fit=["n1"], unfit={})
    with path.open("a") as file:
        file.write('{"no": "event"}\n{"event": "x"}\nnothing\n[1]\n{"event": "torn", "ti')
    Journal(path, 4).append("done", step=3)
    lines = read(path)
    assert [(e["event"], e["token"]) for e in lines] == [("gate", 3), ("done", 4)]
    assert all(isinstance(e["time"], float) for e in lines)


def test_ends_are_what_guards_respect() -> None:
    assert sorted(journal.ENDS) == [
        *("done", "requeued", "stopped", "successor_submitted", "supervisor_left")
    ]


# -- verdict and journal together: a run as a loop -------------------------------------------

BUDGET = Budget(same_place=2, no_progress=6, attempts=200)
SKELETON = Evidence(num_ranks=1, num_nodes=1, num_usable=1)
CRASH = {"exits": {0: 1}, "first_failed": 0}


def story(attempts: Iterable[tuple[int | None, dict[str, Any]]]) -> tuple[Verdict, int]:
    """Run attempts (step reached, evidence) until one ends it; (last verdict, attempts)."""
    state, verdict = State(), Verdict("retry", None, "")
    for number, (last_step, facts) in enumerate(attempts, 1):
        state.note(started(number))
        e = replace(
            SKELETON, **facts, last_step=last_step, max_step=state.max_step,
            same_place=state.same_place, no_progress=state.no_progress, attempts=state.attempts,
        )  # fmt: skip
        verdict = decide(e, BUDGET)
        state.note(ended(verdict.cause, last_step, repeatable=verdict.repeatable))
        if verdict.action in ("stop", "done"):
            break
    return verdict, state.attempts


LOST = {"lost": ("n1",)}
KILLED = {"exits": {0: 137}, "first_failed": 0}
HUNG = {"hung_rank": 0, "hung_node": "n1", "hung_s": 99.0}
FULL = {"exits": {0: 74}, "first_failed": 0}


@pytest.mark.parametrize(
    ("name", "attempts", "action", "count"),
    [
        ("crash at step 7 again and again", [(7, CRASH)] * 50, "stop", 2),
        ("crash at the start", [(None, CRASH)] * 50, "stop", 2),
        ("crash at step 7, hardware between",
         [(7, CRASH), (6, LOST), (7, CRASH), (7, CRASH)], "stop", 3),
        ("segmentation fault at step 7", [(7, {"exits": {0: 139}, "first_failed": 0})] * 50,
         "stop", 6),
        ("hang at step 7", [(7, HUNG)] * 50, "stop", 6),
        ("hang in setup", [(None, HUNG)] * 50, "stop", 6),
        ("full disk", [(7, FULL)] * 50, "wait", 50),  # the supervisor's clock ends it
        ("full disk, then a crash twice",
         [(7, FULL), (7, CRASH), (7, FULL), (7, CRASH), (7, CRASH)], "stop", 4),
        ("hardware without progress", [(None, LOST)] * 50, "stop", 6),
        ("ten hardware losses with progress", [(n * 5, LOST) for n in range(1, 11)], "swap", 10),
        ("crashes with progress", [(n, CRASH) for n in range(1, 51)], "retry", 50),
        ("killed with progress", [(n, KILLED) for n in range(1, 51)], "retry", 50),
        ("done", [(7, CRASH), (30, {"done_file": True})], "done", 2),
        ("wrong configuration", [(None, {"exits": {0: 78}, "first_failed": 0})], "stop", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_story(name: str, attempts: list[Any], action: str, count: int) -> None:
    verdict, tries = story(attempts)
    assert (verdict.action, tries) == (action, count)


FAULTS: list[dict[str, Any]] = [CRASH, LOST, KILLED, HUNG, {"exits": {0: 0}}]


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(FAULTS)), min_size=1, max_size=150))
def test_random_faults_with_progress_never_stop(faults: list[tuple[int, dict[str, Any]]]) -> None:
    step, attempts = 0, []
    for gained, fault in faults:
        step += gained
        attempts.append((step, fault))
    assert story(attempts)[0].action != "stop"


@given(st.lists(st.sampled_from(FAULTS), min_size=20, max_size=20), st.integers(0, 5))
def test_any_faults_without_progress_stop_in_the_end(
    faults: list[dict[str, Any]], step: int
) -> None:
    verdict, tries = story([(step or None, fault) for fault in faults])
    assert verdict.action == "stop"
    assert tries <= BUDGET.no_progress


def test_kills_at_random_moments_of_a_run_of_500_steps_reach_the_end() -> None:
    """Checkpoints every 10 training steps; each attempt lives for 5 to 60 of them."""
    dice = random.Random(3)
    kinds: list[Callable[[], dict[str, Any]]] = [lambda: KILLED, lambda: LOST, lambda: CRASH]

    def attempts() -> Iterable[tuple[int, dict[str, Any]]]:
        saved = 0
        while True:
            reached = saved + dice.randint(11, 60)
            if reached >= 500:
                yield 500, {"done_file": True}
                return
            yield reached, dice.choice(kinds)()
            saved = reached // 10 * 10

    verdict, _ = story(attempts())
    assert verdict.action == "done"


def test_allocations_given_back_in_vain_are_counted_until_there_is_progress() -> None:
    """The first is given back at once: only when the next is no better, there is a pause."""
    ended = {"event": "attempt_ended", "cause": "node_unfit", "attempt": 1}
    back = {"event": "requeued", "cause": "node_unfit", "why": "w"}
    state = fold([{**ended, "last_step": 50}])
    assert (state.no_progress, state.in_vain) == (1, 0)
    again = fold([{**ended, "last_step": 50}, back, {"event": "gate"}, back])
    assert again.in_vain == 2
    again.note({**ended, "last_step": 51})
    assert again.in_vain == 0
    assert fold([{"event": "requeued", "cause": "asked_to_leave", "why": "w"}]).in_vain == 0
