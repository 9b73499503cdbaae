"""A node that answers with anything at all: no check breaks, and none passes on noise alone.

Every kind of file and every program of the fit node in turn holds noise, nothing, half of itself,
colours, line ends of another system, or far too much.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from healthcheck import registry
from healthcheck.finding import Finding
from tests.harness.fake_tools import good
from tests.harness.fake_tools.node import FakeNode

Spoil = Callable[[str], str]
SPOILS: dict[str, Spoil] = {
    "empty": lambda _: "",
    "blank": lambda _: " \n\t\r\n",
    "half": lambda text: text[: len(text) // 2],
    "all but one": lambda text: text[:-1],
    "noise": lambda _: "\x1b[31m\udcff\x00\x07,;:=[]{}()%s%n\u2603\ufffd-1 1e999 0x NaN \\x0a\\",
    "number": lambda _: "9" * 400,
    "negative": lambda _: "-1",
    "unicode digits": lambda _: "\u0663\u0664 \u00b2",
    "colour": lambda text: f"\x1b[1;31m{text}\x1b[0m",
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "twice": lambda text: text + text,
    "huge": lambda text: (text + "\n") * max(1, 200_000 // (len(text) + 1)),
    "deep": lambda _: '{"a":' * 50_000,
    "null": lambda _: "null",
    "objects": lambda _: '{"DCGM Diagnostic": {"tests": 1}, "ranks": [1], "body": [], "points": 1}',
}
HARMLESS = {"colour", "CRLF", "twice", "huge", "all but one"}
"""After these all that was said is still there, or nearly."""


def kind(path: str) -> str:
    """One of many like it: the same file of another device."""
    return re.sub(r"\d+", "0", re.sub(r"[0-9a-f]{4}:[0-9a-f:.]+", "BDF", path))


def files() -> dict[str, str]:
    """One path for each kind of file."""
    found: dict[str, str] = {}
    for path in good.node().files:
        found.setdefault(kind(path), path)
    return found


def run(node: FakeNode) -> list[Finding]:
    """Findings of all modes."""
    findings = []
    for when in registry.MODES:
        findings += node.check(when=when, limit_s=registry.LIMIT_S[when])
    return findings


def broken(findings: list[Finding]) -> list[str]:
    return sorted({f.detail for f in findings if f.detail.startswith("could not be checked")})


@pytest.mark.parametrize("spoil", SPOILS)
def test_any_file(spoil: str) -> None:
    for path in files().values():
        node = good.node()
        content = node.files[path]
        text = content.decode("latin-1") if isinstance(content, bytes) else str(content or "")
        spoilt = SPOILS[spoil](text)
        node.files[path] = spoilt.encode("utf-8", errors="surrogateescape")
        assert broken(node.check(limit_s=60)) == [], path


@cache
def needing(name: str) -> set[str]:
    """Checks that pass, and do not when the program is not there: they go by what it says."""
    without = good.node()
    del without.tools[name]
    passes = [{f.check for f in run(node) if f.status == "PASS"} for node in (good.node(), without)]
    return passes[0] - passes[1]


def spoil_program(node: FakeNode, name: str, spoil: Spoil) -> None:
    node.change(name, lambda answer: replace(answer, out=spoil(answer.out), err=spoil(answer.err)))


@pytest.mark.parametrize("spoil", SPOILS)
def test_any_program(spoil: str) -> None:
    for name in good.node().tools:
        node = good.node()
        spoil_program(node, name, SPOILS[spoil])
        assert broken(run(node)) == [], name


@pytest.mark.parametrize("spoil", sorted(set(SPOILS) - HARMLESS - {"half"}))
def test_no_check_passes_on_noise_alone(spoil: str) -> None:
    """What passed because of a program's answer does not pass when it answers noise."""
    for name in good.node().tools:
        node = good.node()
        spoil_program(node, name, SPOILS[spoil])
        noise = {f.check for f in run(node) if f.status == "PASS"}
        assert noise & needing(name) == set(), name
