"""Which rank hangs: not the first that is seen silent, but the one that the others wait for."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.recipe import Budget, Command, Hang
from muster.site import Site
from resume.watch import Watch, find_hung

HANG = Hang(floor_s=30, factor=5, setup_s=1200, save_s=1800, eval_s=900)
Beats = dict[int, tuple[str, int | None, float, str]]


def beat(phase: str, step: int | None, age: float, node: str = "n1") -> Any:
    return (phase, step, age, node)


ROWS: list[tuple[str, Beats, dict[int, int], float | None, int | None]] = [
    ("nobody", {}, {}, 1.0, None),
    ("alive", {0: beat("step", 5, 29), 1: beat("step", 5, 1)}, {}, 1.0, None),
    ("at the floor", {0: beat("step", 5, 30)}, {}, 1.0, None),
    ("above the floor", {0: beat("step", 5, 30.1)}, {}, 1.0, 0),
    ("slow steps raise the limit", {0: beat("step", 5, 49)}, {}, 10.0, None),
    ("above five slow steps", {0: beat("step", 5, 51)}, {}, 10.0, 0),
    ("no step timed yet: that of the setup", {0: beat("step", 1, 1199)}, {}, None, None),
    ("no step timed yet, above it", {0: beat("step", 1, 1201)}, {}, None, 0),
    ("setup", {0: beat("setup", None, 1199)}, {}, 1.0, None),
    ("setup, above", {0: beat("setup", None, 1201)}, {}, 1.0, 0),
    ("save", {0: beat("save", 5, 1799)}, {}, 1.0, None),
    ("save, above", {0: beat("save", 5, 1801)}, {}, 1.0, 0),
    ("eval", {0: beat("eval", 5, 899)}, {}, 1.0, None),
    ("eval, above", {0: beat("eval", 5, 901)}, {}, 1.0, 0),
    ("a phase of the recipe's own counts as a step", {0: beat("thinking", 5, 31)}, {}, 1.0, 0),
    ("ended ranks need not beat", {0: beat("step", 5, 99)}, {0: 0}, 1.0, None),
    ("ended badly neither", {0: beat("step", 5, 99)}, {0: 1}, 1.0, None),
    ("the one silent longest", {0: beat("step", 5, 40), 1: beat("step", 5, 41)}, {}, 1.0, 1),
    ("equal silence: the earliest step",
     {0: beat("step", 6, 40), 1: beat("step", 5, 40), 2: beat("step", 6, 40)}, {}, 1.0, 1),
    ("equal silence: no step is earliest",
     {0: beat("step", 6, 40), 1: beat("step", None, 40)}, {}, 1.0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "beats", "exits", "p99", "rank"), ROWS, ids=[r[0] for r in ROWS])
def test_row(
    name: str, beats: Beats, exits: dict[int, int], p99: float | None, rank: int | None
) -> None:
    found = find_hung(beats, exits, HANG, p99)
    assert (found[0] if found else None) == rank


def test_node_and_silence_are_told() -> None:
    beats = {3: beat("step", 5, 31.5, "n2"), 0: beat("step", 5, 2.0, "n1")}
    assert find_hung(beats, {}, HANG, 1.0) == (3, "n2", 31.5)


phases = st.sampled_from(["setup", "step", "save", "eval", "other"])
all_beats = st.dictionaries(
    st.integers(0, 7),
    st.tuples(phases, st.none() | st.integers(0, 99), st.floats(0, 5000), st.just("n1")),
)


@given(all_beats, st.dictionaries(st.integers(0, 7), st.integers(0, 255)), st.floats(0.01, 500))
def test_culprit_is_silent_longest_of_the_living(
    beats: Beats, exits: dict[int, int], p99: float
) -> None:
    found = find_hung(beats, exits, HANG, p99)
    limits = {"setup": 1200.0, "save": 1800.0, "eval": 900.0}
    living = {rank: beat for rank, beat in beats.items() if rank not in exits}
    # The most patient phase holds for all: the others wait for that rank.
    limit = max((limits.get(beat[0], max(30, 5 * p99)) for beat in living.values()), default=0)
    late = {rank: beat[2] for rank, beat in living.items() if beat[2] > limit}
    assert (found is None) == (not late)
    if found:
        assert late[found[0]] == found[2] == max(late.values())


def watch_of(silence: dict[str, float], answering: str) -> Watch:
    """A watch over one rank on each node; rank 0 has stopped, and each node was last heard so."""
    nodes = list(silence)
    node_watch = SimpleNamespace(lost=lambda _: False, away=lambda: False, condemned=lambda _: None)
    fleet = SimpleNamespace(
        silent_s=silence.__getitem__,
        exits=lambda _: {},
        beats=lambda _: {r: beat("step", 5, 31 - r, node) for r, node in enumerate(nodes)},
        nodes={},
        asked=[],
    )
    supervisor = SimpleNamespace(
        host="n1",
        fleet=fleet,
        site=Site(),
        recipe=SimpleNamespace(hang=HANG, budget=Budget()),
        done_file=Path("/nowhere/DONE"),
        allocation=SimpleNamespace(
            node_watch=node_watch,
            answers=lambda n: n in answering,
            check_ahead=lambda: fleet.asked.append(dict(silence)),
        ),
        must_leave=lambda: None,
    )
    plan = SimpleNamespace(nodes=nodes, num_ranks=2, ranks_per_node=1)
    launched = SimpleNamespace(plan=plan, poll=lambda: None)
    metrics = SimpleNamespace(
        poll=lambda: None, first_step=None, take_losses=lambda: (), p99_s=lambda: 1.0
    )
    command = Command("train", "true")
    return Watch(cast(Any, supervisor), cast(Any, launched), command, cast(Any, metrics))


def test_a_hang_is_believed_once_every_node_has_spoken() -> None:
    silence = {"n1": 0.4, "n2": 0.5}
    watch = watch_of(silence, "n1 n2")
    assert not watch._over()  # seen first, nobody has spoken since
    watch.trouble_at = time.monotonic() - 0.6
    assert watch._over()
    assert watch.hung is not None
    assert watch.hung[1] == "n1"
    assert not watch.lost


def test_a_report_that_was_longer_on_its_way_is_no_sign_of_life() -> None:
    watch = watch_of({"n1": 0.4, "n2": 0.5}, "n1 n2")
    assert not watch._over()
    watch.trouble_at = time.monotonic() - 0.6
    younger = {0: beat("step", 5, 29.6), 1: beat("step", 5, 29.5)}
    cast(Any, watch.supervisor.fleet).beats = lambda _: younger
    assert watch._over()
    watch.trouble_at = None  # as a first look that is no hang
    assert not watch._over()


def test_ranks_that_wait_for_a_node_that_died_without_a_word_do_not_hang() -> None:
    silence = {"n1": 0.2, "n2": 1.1}
    watch = watch_of(silence, "n1")
    assert not watch._over()
    watch.trouble_at = time.monotonic() - 1.0
    assert not watch._over()  # n2 has not spoken since
    silence["n2"] = 1.3
    assert watch._over()
    assert watch.lost == ["n2"]


def test_spares_are_asked_before_a_silent_node_counts_as_lost() -> None:
    silence = {"n1": 9.0, "n2": 0.5}
    watch = watch_of(silence, "n1 n2")  # the batch host is our own: nobody can lose it here
    cast(Any, watch.supervisor.fleet).beats = lambda _: {}
    for quiet_s in (0.5, 8.4, 8.6):  # of the 10 s after which it is lost
        silence["n2"] = quiet_s
        assert not watch._over()
    assert cast(Any, watch.supervisor.fleet).asked == [{"n1": 9.0, "n2": 8.6}]
    assert not watch.lost


def test_a_rank_that_goes_on_has_not_hung() -> None:
    watch = watch_of({"n1": 0.2, "n2": 0.2}, "n1 n2")
    assert not watch._over()
    beats = {0: beat("step", 6, 0), 1: beat("step", 6, 0)}
    cast(Any, watch.supervisor.fleet).beats = lambda _: beats
    assert not watch._over()
    assert watch.trouble_at is None
