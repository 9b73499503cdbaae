"""A user's srun line taken apart: what is his is kept word by word, what is muster's is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from muster.errors import UsageError
from resume.step import Step, parse

HERE = Path("/work place")


def step(
    *words: str, environment: Mapping[str, str] = MappingProxyType({}), allocated: int = 5
) -> Step:
    return parse(words, environment, allocated, HERE)


def test_everything_that_is_not_ours_is_kept_word_by_word() -> None:
    kept = (
        *("--label", "-u", "--gpus-per-task=1", "--cpu-bind", "cores", "--comment=-N 9", "-c", "4"),
        *("--container-image=a.sqsh", "--container-mounts", "/a:/b,/c:/d", "-J", "a=b", "-v", "-v"),
    )
    ours = ("-N2", "--ntasks", "4", "--auto-resume=1", "-w", "n1,n2", "-D", "/x")
    found = step(*kept[:6], *ours, *kept[6:], "--", "python", "train.py", "--lr", "1 e", "-N", "9")
    assert found.options == kept
    assert (found.nodes, found.ranks_per_node, found.folder) == (2, 2, Path("/x"))
    assert found.program == "python train.py --lr '1 e' -N 9"


NODES = [
    (("-N", "3"), 3),
    (("-N3",), 3),
    (("-lN3",), 3),
    (("--nodes", "3"), 3),
    (("--nodes=3",), 3),
    (("--nodes=3", "-N2"), 2),  # the last one counts, as for srun
    ((), 5),
]


@pytest.mark.parametrize(("words", "nodes"), NODES)
def test_number_of_nodes(words: tuple[str, ...], nodes: int) -> None:
    assert step(*words, "--", "x").nodes == nodes


def test_flags_in_one_word_with_ours_are_kept() -> None:
    assert step("-luN3", "--", "x").options == ("-lu",)


@pytest.mark.parametrize("word", ["--auto-resume=1", "--auto-res=1", "--auto-resume"])
def test_own_option_is_not_handed_on(word: str) -> None:
    assert step(word, *(["1"] if "=" not in word else []), "-l", "--", "x").options == ("-l",)


TASKS = [
    # words, environment, tasks on each of 2 nodes of 4
    (("-n", "6"), {"SLURM_NTASKS_PER_NODE": "8"}, 3),
    (("--ntasks-per-node=8",), {"SLURM_NTASKS": "4"}, 8),
    ((), {"SLURM_NTASKS_PER_NODE": "8", "SLURM_NTASKS": "99"}, 8),
    ((), {"SLURM_NTASKS": "32"}, 8),
    ((), {}, 1),
]


@pytest.mark.parametrize(("words", "environment", "tasks"), TASKS)
def test_tasks_on_each_node(
    words: tuple[str, ...], environment: dict[str, str], tasks: int
) -> None:
    assert (
        step("-N2", *words, "--", "x", environment=environment, allocated=4).ranks_per_node == tasks
    )


REFUSED = [
    (("-N2",), "names no program"),
    (("-N2", "--"), "names no program"),
    (("-N6", "--", "x"), "the job has 5 nodes"),
    (("-N", "1-2", "--", "x"), "no number"),
    (("-N2", "-n3", "--", "x"), "not the same number"),
    (("--multi-prog", "--", "x"), "--multi-prog"),
    (("-x", "n1", "--", "x"), "--exclude"),
    (("-r1", "--", "x"), "--relative"),
    (("--pty", "--", "bash"), "--pty"),
    (("-N1", "--", "x", ":", "-N1", "y"), "--het-group"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_step_that_cannot_be_moved_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        step(*words)


def test_relative_folder_is_below_the_present_one() -> None:
    assert step("-D", "a", "--", "x").folder == HERE / "a"
    assert step("--", "x").folder == HERE


EXPORTS = [
    ((), {}, []),
    (("--export=ALL",), {}, ["--export=ALL"]),
    (("--export", "ALL,A=1"), {}, ["--export=ALL,A=1"]),
    (("--export=A=1,B",), {}, ["--export=A=1,B,MUSTER_X"]),
    (("--export=NONE",), {}, ["--export=MUSTER_X"]),
    ((), {"SLURM_EXPORT_ENV": "NONE"}, ["--export=MUSTER_X"]),
]


@pytest.mark.parametrize(("words", "environment", "said"), EXPORTS)
def test_our_variables_reach_the_ranks_whatever_is_exported(
    words: tuple[str, ...], environment: dict[str, str], said: list[str]
) -> None:
    found = step(*words, "--", "x", environment=environment)
    assert found.export_option(["MUSTER_X"]) == said
    assert not any("export" in word for word in found.options)
