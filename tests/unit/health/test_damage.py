"""Whatever a program or a file says, no check breaks, none blames a fit node, none passes blind."""

from __future__ import annotations

import re
from functools import cache

import pytest

from healthcheck import registry
from healthcheck.finding import Finding
from tests.harness.fake_tools import good
from tests.harness.fake_tools.damage import GONE, WRAPPED, Source, cuts, sources
from tests.harness.fake_tools.judge import load, worst
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row

MODES = ("prolog", "return")  # together they make every check that reads something
FEW, MANY = 4, 300


@cache
def fit_sources(when: str) -> list[Source]:
    """All that is read; of eight GPUs, sixteen cards and so on one stands for all."""
    alike = {re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", str(s)): s for s in sources(good.node(), when)}
    return list(alike.values())


def run(edit: Edit, when: str, check: str | None = None) -> dict[str, Finding]:
    """The worst that each check says."""
    node = good.node()
    edit(node)
    found: dict[str, list[Finding]] = {}
    for finding in node.check(check, when, limit_s=registry.LIMIT_S[when]):
        found.setdefault(finding.check, []).append(finding)
    return {name: worst(all_) for name, all_ in found.items()}


@cache
def who_needs(source: Source, when: str) -> frozenset[str]:
    """The checks that pass on the fit node, and do not when this source says nothing."""
    fit, without = run(lambda _: None, when), run(source.absent, when)
    return frozenset(name for name, f in fit.items() if f.status == "PASS" != without[name].status)


def complain(found: dict[str, Finding], where: str) -> None:
    """No check broke, and none blames the node, which is fit."""
    broken = [f for f in found.values() if "could not be checked" in f.detail]
    assert not broken, f"{where}: {broken[0].detail}"
    blamed = [f for f in found.values() if f.action != "none"]
    assert not blamed, f"{where}: {blamed[0]}"


CASES = [(when, str(source)) for when in MODES for source in fit_sources(when)]
# A program can be killed in the middle of a word; the kernel writes its small files whole.
ANSWERS = [(when, str(s)) for when in MODES for s in fit_sources(when) if s.program]


@pytest.mark.parametrize(("when", "name"), CASES)
def test_what_is_damaged_blames_nobody_and_passes_nothing(when: str, name: str) -> None:
    source = next(one for one in fit_sources(when) if str(one) == name)
    whole = source.text(good.node())
    for how, change in {**GONE, **WRAPPED}.items():
        if change(whole) == whole:
            continue
        found = run(source.damaged(change), when)
        complain(found, f"{source}: {how}")
        if how in GONE:
            blind = [n for n in who_needs(source, when) if found[n].status == "PASS"]
            assert not blind, f"{source}: {how}: {blind} passes"


def cut(source: Source, at: int) -> Edit:
    return source.damaged(lambda text: text[:at])


@pytest.mark.parametrize(("when", "name"), ANSWERS)
def test_a_cut_answer_blames_nobody(when: str, name: str) -> None:
    source = next(one for one in fit_sources(when) if str(one) == name)
    for at in cuts(len(source.text(good.node())), FEW, name):
        complain(run(cut(source, at), when), f"{source}: cut at {at}")


@pytest.mark.slow
@pytest.mark.parametrize(("when", "name"), ANSWERS)
def test_an_answer_cut_at_every_place_blames_nobody(when: str, name: str) -> None:
    source = next(one for one in fit_sources(when) if str(one) == name)
    for at in cuts(len(source.text(good.node())), MANY, name):
        complain(run(cut(source, at), when), f"{source}: cut at {at}")


BAD = {name: row for name, row in load().items() if row.status in ("FAIL", "WARN")}


# A list of processes may end after any line; gpu_memory_left sees who was cut off there.
MAY_END_ANYWHERE = ("gpu_processes",)


def changed_sources(row: Row) -> list[tuple[Source, FakeNode]]:
    """What says something else on the bad node, and the node. Slurm is only a second opinion."""
    node, fit = good.node(), good.node()
    row.edit(node)
    return [
        (source, node)
        for source in sources(node, row.when, row.check)
        if source.program in fit.tools
        and source.program != "scontrol"
        and source.text(node) != source.text(fit)
    ]


def passes_when_cut(row: Row, most: int) -> list[str]:
    """Where the bad news can be cut off so that the check passes: nowhere, if all is well."""
    found = []
    for source, _ in changed_sources(row):
        node = good.node()
        row.edit(node)
        text = str(source.text(node))
        for at in cuts(len(text), most, row.name):
            if row.check in MAY_END_ANYWHERE and text[:at].endswith("\n"):
                continue
            again = good.node()
            row.edit(again)
            cut(source, at)(again)
            seen = worst(again.check(row.check, row.when, limit_s=registry.LIMIT_S[row.when]))
            if seen.status == "PASS":
                found.append(f"{source} cut at {at}: {seen.detail}")
    return found


@pytest.mark.parametrize("name", BAD)
def test_bad_news_that_are_cut_off_are_no_good_news(name: str) -> None:
    assert passes_when_cut(BAD[name], FEW) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_news_that_are_cut_off_anywhere_are_no_good_news(name: str) -> None:
    assert passes_when_cut(BAD[name], MANY) == []
