"""The supervisor's pure parts: which nodes, how many ranks, with whose arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.recipe import Command, Recipe
from muster.site import Site
from resume.attempt import with_arguments
from resume.flow import choose
from resume.supervisor import ranks_on_a_node, wanted_nodes


@pytest.mark.parametrize(
    ("fit", "previous", "wanted", "chosen"),
    [
        ("abc", "", 2, "ab"),
        ("abc", "ab", 2, "ab"),
        ("abc", "ba", 2, "ab"),
        ("abc", "bc", 2, "bc"),
        ("ac", "ab", 2, "ac"),  # b is lost: the spare comes in
        ("bc", "ab", 2, "bc"),  # a is lost: b has rank 0 now
        ("acd", "ad", 2, "ad"),
        ("cd", "ab", 2, "cd"),
        ("abc", "a", 2, "ab"),
        ("abc", "ab", 1, "a"),
        ("bc", "abc", 2, "bc"),  # a smaller command than the one before
        ("ab", "abc", 3, "ab"),
        ("", "ab", 2, ""),
        ("abc", "ab", 0, ""),
    ],
)
def test_choose(fit: str, previous: str, wanted: int, chosen: str) -> None:
    assert choose(list(fit), list(previous), wanted) == list(chosen)


names = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(names, names, st.integers(0, 9))
def test_choice_is_fit_complete_unique_in_order_and_keeps_nodes(
    fit: list[str], previous: list[str], wanted: int
) -> None:
    chosen = choose(fit, previous, wanted)
    assert len(chosen) == min(wanted, len(fit))
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(fit)
    assert choose(fit, chosen, wanted) == chosen
    assert chosen == sorted(chosen, key=fit.index)
    assert set(previous[:wanted]) & set(fit) <= set(chosen)


def recipe(nodes: int = 2, spares: int = 1, ranks: int | None = None) -> Recipe:
    command = [Command("train", "python train.py")]
    return Recipe("r", "s", nodes, command, spares=spares, ranks_per_node=ranks)


@pytest.mark.parametrize("allocated", [2, 3, 9])
def test_enough_nodes(allocated: int) -> None:
    wanted_nodes(recipe(), allocated)


def test_too_few_nodes_say_what_to_pass() -> None:
    with pytest.raises(ConfigError, match=r"1 nodes, the recipe trains on 2") as caught:
        wanted_nodes(recipe(), 1)
    assert caught.value.fix == "sbatch --nodes=3, or pass nodes=1 spares=0"


@pytest.mark.parametrize(
    ("of_recipe", "of_site", "gpus", "wanted"),
    [(None, None, None, 1), (None, None, 8, 8), (None, 4, 8, 4), (2, 4, 8, 2), (None, None, 0, 1)],
)
def test_ranks_on_a_node(
    of_recipe: int | None, of_site: int | None, gpus: int | None, wanted: int
) -> None:
    assert ranks_on_a_node(recipe(ranks=of_recipe), Site(ranks_per_node=of_site), gpus) == wanted


@pytest.mark.parametrize(
    ("done_by", "arguments", "line"),
    [
        ("DONE", [], "run me"),
        ("DONE", ["a=1", "two words", "$x"], "run me a=1 'two words' '$x'"),
        ("exit", ["a=1"], "run me"),
    ],
)
def test_only_the_command_that_trains_takes_the_users_arguments(
    done_by: str, arguments: list[str], line: str
) -> None:
    command = Command("c", "run me", every_node=False, done_by=done_by, time_limit_s=3.0)
    changed = with_arguments(command, arguments)
    assert changed.run == line
    assert (changed.name, changed.every_node, changed.done_by, changed.time_limit_s) == (
        "c", False, done_by, 3.0,
    )  # fmt: skip
