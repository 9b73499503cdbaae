"""Every row of the table from evidence to verdict, and what holds for all evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.recipe import Budget
from resume.verdict import Evidence, Verdict, culprit, decide

BUDGET = Budget(same_place=2, no_progress=6, attempts=200)
BASE = Evidence(num_ranks=2, num_nodes=2, num_usable=3)
OK, ONE_FAILED = {0: 0, 1: 0}, {1: 1}


def failed(code: int, **more: Any) -> dict[str, Any]:
    return {"exits": {1: code}, "first_failed": 1, "launcher_rc": code, **more}


ROWS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    # what is known, then action and cause
    "DONE": ({"done_file": True, "exits": OK}, "done", None),
    "DONE beats a lost node": ({"done_file": True, "lost": ("n1",)}, "done", None),
    "DONE beats a failed rank": ({"done_file": True, **failed(1)}, "done", None),
    "DONE beats a spent budget": ({"done_file": True, "no_progress": 99}, "done", None),
    "done by exit": ({"done_by_exit": True, "exits": OK}, "done", None),
    "done by exit, srun's word": ({"done_by_exit": True, "launcher_rc": 0}, "done", None),
    "done by exit, one rank missing": (
        {"done_by_exit": True, "exits": {0: 0}, "launcher_rc": 0}, "retry", "launch_failed"),
    "done by exit, failed": ({"done_by_exit": True, **failed(2)}, "retry", "rank_failed"),
    "done by exit, node lost": ({"done_by_exit": True, "lost": ("n1",)}, "swap", "node_lost"),
    "node lost, spare": ({"lost": ("n1",), "num_usable": 2}, "swap", "node_lost"),
    "node lost, no spare": ({"lost": ("n1",), "num_usable": 1}, "requeue", "node_lost"),
    "all nodes lost": ({"lost": ("n1", "n2"), "num_usable": 0}, "requeue", "node_lost"),
    "node unfit, spare": ({"unfit": {"n2": "gpu"}, "num_usable": 2}, "swap", "node_unfit"),
    "node unfit, no spare": ({"unfit": {"n2": "gpu"}, "num_usable": 1}, "requeue", "node_unfit"),
    "lost beats unfit": ({"lost": ("n1",), "unfit": {"n2": "x"}}, "swap", "node_lost"),
    "lost beats hang": ({"lost": ("n1",), "hung_rank": 0, "hung_node": "n1"}, "swap", "node_lost"),
    "lost beats failed ranks": ({"lost": ("n1",), **failed(137)}, "swap", "node_lost"),
    "lost beats the rank's config error": ({"lost": ("n1",), **failed(78)}, "swap", "node_lost"),
    "unfit beats the rank's missing data": (
        {"unfit": {"n2": "mount"}, **failed(65)}, "swap", "node_unfit"),
    "lost beats asked to leave": (
        {"lost": ("n1",), "asked_to_leave": "time_limit"}, "requeue", "node_lost"),
    "no time for a retry": (
        {"asked_to_leave": "preempted", "hung_rank": 1, "hung_node": "n2"},
        "requeue", "asked_to_leave"),
    "config error": (failed(78), "stop", "config"),
    "data missing": (failed(65), "stop", "data"),
    "no such program": (failed(127), "stop", "config"),
    "program cannot be run": (failed(126), "stop", "config"),
    "config error of another rank than the first to fail": (
        {"exits": {0: 1, 1: 78}, "first_failed": 0}, "retry", "rank_failed"),
    "asked to leave for time": (
        {"asked_to_leave": "time_limit", "exits": OK}, "requeue", "asked_to_leave"),
    "asked to leave, budget spent": (
        {"asked_to_leave": "time_limit", "no_progress": 99}, "stop", "asked_to_leave"),
    "asked to leave, but it got further": (
        {"asked_to_leave": "time_limit", "no_progress": 99, "last_step": 9},
        "requeue", "asked_to_leave"),
    "killed where memory ran out": (
        {**failed(137), "blamed_node": "n1", "oom_nodes": ("n1",)}, "retry", "out_of_memory"),
    "killed, memory ran out elsewhere": (
        {**failed(137), "blamed_node": "n1", "oom_nodes": ("n2",)}, "retry", "rank_failed"),
    "memory ran out, but the rank failed by itself": (
        {**failed(1), "blamed_node": "n1", "oom_nodes": ("n1",)}, "retry", "rank_failed"),
    "what three nodes show": (
        {**failed(1), "infrastructure": "3 nodes show the same"}, "wait", "infrastructure"),
    "a lost node beats what three show": (
        {"lost": ("n1",), "infrastructure": "3 nodes"}, "swap", "node_lost"),
    "srun failed, no controller": (
        {"launcher_rc": 1, "slurm_away": True}, "wait", "slurm_away"),
    "a rank failed, no controller": (
        {**failed(1), "slurm_away": True}, "retry", "rank_failed"),
    "killed on the same node again": (
        {**failed(139), "blamed_node": "n1", "blamed_before": ("n1",)}, "swap", "rank_failed"),
    "killed on another node": (
        {**failed(139), "blamed_node": "n1", "blamed_before": ("n2",)}, "retry", "rank_failed"),
    "killed on the same node again, no spare": (
        {**failed(139), "blamed_node": "n1", "blamed_before": ("n1",), "num_usable": 2},
        "retry", "rank_failed"),
    "the program failed on the same node again": (
        {**failed(1), "blamed_node": "n1", "blamed_before": ("n1",)}, "retry", "rank_failed"),
    "asked to leave, unfit node": (
        {"asked_to_leave": "node_unfit", "unfit": {"n1": "x"}, "exits": OK}, "swap", "node_unfit"),
    "hang": ({"hung_rank": 1, "hung_node": "n2", "hung_s": 40.0}, "retry", "hang"),
    "time limit of the command": ({"timed_out": True}, "retry", "hang"),
    "hang beats a killed rank": (
        {"hung_rank": 1, "hung_node": "n2", **failed(137)}, "retry", "hang"),
    "storage full": (failed(74), "wait", "storage"),
    "rank failed": (failed(1), "retry", "rank_failed"),
    "rank killed": (failed(137), "retry", "rank_failed"),
    "rank fenced": (failed(75), "retry", "rank_failed"),
    "left early": ({"exits": OK}, "retry", "left_early"),
    "srun failed": ({"launcher_rc": 1}, "retry", "launch_failed"),
    "srun ended well, ranks unknown": ({"launcher_rc": 0}, "retry", "launch_failed"),
    "some ranks exited 0, srun too": (
        {"exits": {0: 0}, "launcher_rc": 0}, "retry", "launch_failed"),
    "nothing is known": ({}, "retry", "rank_failed"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    facts, action, cause = ROWS[name]
    verdict = decide(replace(BASE, **facts), BUDGET)
    assert (verdict.action, verdict.cause) == (action, cause)
    assert verdict.why


CODES = {"config error": 78, "data missing": 65, "no such program": 78, "storage full": 74}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_exit_code_of_the_job(name: str, code: int) -> None:
    assert decide(replace(BASE, **ROWS[name][0]), BUDGET).exit_code == code


@pytest.mark.parametrize(
    ("facts", "node"),
    [
        ({"lost": ("n2", "n1")}, "n2"),
        ({"unfit": {"n1": "gpu 3 fell off the bus"}}, "n1"),
        ({"hung_rank": 1, "hung_node": "n2"}, "n2"),
        (failed(1), None),
    ],
)
def test_node_to_blame(facts: dict[str, Any], node: str | None) -> None:
    assert decide(replace(BASE, **facts), BUDGET).node == node


EDGES: dict[str, tuple[dict[str, Any], str]] = {
    "first failure": ({**failed(1), "same_place": 0}, "retry"),
    "second at the same place": ({**failed(1), "same_place": 1}, "stop"),
    "second, but it got further": (
        {**failed(1), "same_place": 1, "last_step": 8, "max_step": 7}, "retry"),
    "second, as far as before": (
        {**failed(1), "same_place": 1, "last_step": 7, "max_step": 7}, "stop"),
    "second, not as far": ({**failed(1), "same_place": 1, "last_step": 5, "max_step": 7}, "stop"),
    "second, killed by a signal": ({**failed(139), "same_place": 1}, "retry"),
    "second, left early": ({"exits": OK, "same_place": 1}, "stop"),
    "hardware at the same place": ({"lost": ("n1",), "same_place": 1}, "swap"),
    "hang at the same place": ({"hung_rank": 0, "hung_node": "n1", "same_place": 1}, "retry"),
    "storage at the same place": ({**failed(74), "same_place": 1}, "wait"),
    "fifth without progress": ({"lost": ("n1",), "no_progress": 4}, "swap"),
    "sixth without progress": ({"lost": ("n1",), "no_progress": 5}, "stop"),
    "sixth, but it got further": (
        {"lost": ("n1",), "no_progress": 5, "last_step": 1, "max_step": 0}, "swap"),
    "storage has a patience of its own": ({**failed(74), "no_progress": 5}, "wait"),
    "storage at attempt 200": ({**failed(74), "attempts": 200}, "wait"),
    "sixth without progress, no spare": (
        {"lost": ("n1",), "no_progress": 5, "num_usable": 0}, "stop"),
    "sixth without progress, hang": (
        {"hung_rank": 0, "hung_node": "n1", "no_progress": 5}, "stop"),
    "attempt 199": ({"lost": ("n1",), "attempts": 199, "last_step": 9}, "swap"),
    "attempt 200": ({"lost": ("n1",), "attempts": 200, "last_step": 9}, "stop"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_budget_edge(name: str) -> None:
    facts, action = EDGES[name]
    verdict = decide(replace(BASE, **facts), BUDGET)
    assert verdict.action == action
    assert action != "stop" or (verdict.why and verdict.fix)


@pytest.mark.parametrize(
    ("facts", "repeatable"),
    [
        (failed(1), True),
        (failed(128), False),
        (failed(137), False),  # killed: by whom is not known
        (failed(74), False),
        ({"exits": OK}, True),
        ({"lost": ("n1",), **failed(1)}, False),
        ({"hung_rank": 0, "hung_node": "n1"}, False),
        ({"launcher_rc": 1}, False),
    ],
)
def test_only_failures_of_the_program_are_repeatable(
    facts: dict[str, Any], repeatable: bool
) -> None:
    assert decide(replace(BASE, **facts), BUDGET).repeatable is repeatable


@pytest.mark.parametrize(
    ("exits", "rank"),
    [
        ({}, None),
        ({0: 0, 1: 0}, None),
        ({0: 0, 1: 1}, 1),
        ({1: 1, 0: 1}, 1),  # the first that was seen
        ({0: 1, 1: 137}, 1),  # a peer sees the connection break and exits
        ({0: 143, 1: 1}, 1),  # Slurm ends the others with SIGTERM
        ({0: 143, 1: 143}, 0),
        ({0: 143, 1: 139, 2: 137, 3: 1}, 1),
        ({0: 0, 1: 143, 2: 78}, 2),
    ],
)
def test_culprit(exits: dict[int, int], rank: int | None) -> None:
    assert culprit(exits) == rank


nodes = st.sampled_from(["n1", "n2", "n3"])
codes = st.sampled_from([0, 0, 1, 2, 65, 74, 75, 78, 126, 127, 134, 137, 139, 143, 255])
small = st.integers(0, 9)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    exits = draw(st.dictionaries(st.integers(0, 3), codes))
    bad = [rank for rank, code in exits.items() if code]
    hung = draw(st.none() | st.tuples(st.integers(0, 3), nodes))
    return Evidence(
        num_ranks=4,
        num_nodes=draw(st.integers(1, 3)),
        num_usable=draw(st.integers(0, 4)),
        exits=exits,
        first_failed=draw(st.sampled_from(bad)) if bad else None,
        launcher_rc=draw(st.none() | codes),
        done_file=draw(st.booleans()),
        done_by_exit=draw(st.booleans()),
        lost=tuple(draw(st.lists(nodes, max_size=2, unique=True))),
        unfit=draw(st.dictionaries(nodes, st.text(max_size=4), max_size=2)),
        hung_rank=hung[0] if hung else None,
        hung_node=hung[1] if hung else None,
        hung_s=draw(st.floats(0, 1e6)),
        timed_out=draw(st.booleans()),
        asked_to_leave=draw(st.none() | st.sampled_from(["time_limit", "node_unfit"])),
        last_step=draw(st.none() | small),
        max_step=draw(small),
        same_place=draw(small),
        no_progress=draw(small),
        attempts=draw(st.integers(1, 300)),
    )


budgets = st.builds(
    Budget, same_place=st.integers(1, 5), no_progress=st.integers(1, 9),
    attempts=st.integers(1, 300), leave_s=st.just(1.0),
)  # fmt: skip


def check(e: Evidence, verdict: Verdict) -> None:
    """What holds for every evidence."""
    assert verdict.action in ("done", "retry", "swap", "requeue", "wait", "stop")
    assert verdict.why
    assert (verdict.cause is None) == (verdict.action == "done")
    if verdict.action == "stop":
        assert verdict.fix
        assert verdict.exit_code in (1, 65, 74, 78)
    if (e.lost or e.unfit) and verdict.action != "done":
        assert verdict.action in ("swap", "requeue", "stop")  # never again on a bad node
    if verdict.action == "swap":
        assert e.num_usable >= e.num_nodes
    if e.done_file:
        assert verdict.action == "done"
    elif not e.done_by_exit:
        assert verdict.action != "done"


@given(evidences(), budgets)
def test_every_evidence_has_a_verdict(e: Evidence, budget: Budget) -> None:
    verdict = decide(e, budget)
    check(e, verdict)
    assert decide(e, budget) == verdict


@given(evidences(), budgets)
def test_more_budget_never_stops_sooner(e: Evidence, budget: Budget) -> None:
    more = replace(
        budget, same_place=budget.same_place + 1, no_progress=budget.no_progress + 1,
        attempts=budget.attempts + 1,
    )  # fmt: skip
    if decide(e, budget).action != "stop":
        assert decide(e, more) == decide(e, budget)


STRICT = Budget(same_place=1, retry_blind=False)  # of `srun --auto-resume=1`
STRICT_ROWS: dict[str, tuple[dict[str, Any], str, int]] = {
    # what is known, then action and exit code
    "crash": (failed(3), "stop", 3),
    "killed by a signal": (failed(139), "stop", 139),
    "srun refused the line": ({"launcher_rc": 2}, "stop", 2),
    "crash after progress": (failed(3, last_step=9, max_step=5), "retry", 1),
    "signal after progress": (failed(137, last_step=9, max_step=5), "retry", 1),
    "crash at the same place again": (
        failed(3, last_step=9, max_step=9, same_place=1), "stop", 3),
    "lost node": ({"lost": ("n1",), **failed(1)}, "swap", 1),
    "unfit node": ({"unfit": {"n1": "gpu"}, **failed(1)}, "swap", 1),
    "hang": ({"hung_rank": 0, "hung_node": "n1"}, "retry", 1),
    "left when asked, all 0": (
        {"done_by_exit": True, "exits": OK, "asked_to_leave": "time_limit"}, "requeue", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", STRICT_ROWS)
def test_program_that_fails_without_progress_is_not_tried_again(name: str) -> None:
    known, action, exit_code = STRICT_ROWS[name]
    verdict = decide(replace(BASE, **known), STRICT)
    assert (verdict.action, verdict.exit_code) == (action, exit_code)
