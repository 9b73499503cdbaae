"""Every parser of healthcheck/read, found by its name, on any text at all: no exception, ever."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healthcheck import read
from healthcheck.read.gpu import FIELDS
from tests.harness.fake_tools import good
from tests.harness.fake_tools.damage import GONE, WRAPPED, sources

Parser = Callable[..., Any]


def parsers() -> dict[str, Parser]:
    """All functions called parse or parse_..."""
    found: dict[str, Parser] = {}
    for module in pkgutil.iter_modules(read.__path__):
        members = vars(importlib.import_module(f"{read.__name__}.{module.name}"))
        for name, member in members.items():
            if name.startswith("parse") and inspect.isfunction(member):
                found[f"{module.name}.{name}"] = member
    return found


PARSERS = parsers()
TEXTS = sorted({str(source.text(good.node())) for source in sources(good.node(), "return")})
BITS = st.sampled_from([
    "\n", "\r\n", ",", ": ", "\x1b[31m", "\x00", "\ufeff", "\u00e9", "GPU-", "[N/A]", "-1",
    "9" * 30, "\u0663", "NVRM: Xid (PCI:0000:53:00): 79, ", '{"', "}", "[", "\t Link 0: ", "=",
])  # fmt: skip


def damaged(text: str) -> st.SearchStrategy[str]:
    """Parts of a good text, cut and mixed with anything."""
    part = st.builds(lambda a, b: text[a : a + b], st.integers(0, len(text)), st.integers(0, 300))
    return st.lists(st.one_of(part, BITS, st.text(max_size=20)), max_size=12).map("".join)


ANY_TEXT = st.one_of(st.text(), st.sampled_from(TEXTS).flatmap(damaged))


def arguments(parser: Parser, text: str) -> list[Any]:
    """Something for every parameter: the text for the first, the usual for the others."""
    namespace = {**vars(inspect.getmodule(parser)), "Any": Any}
    hints = typing.get_type_hints(parser, namespace)
    hints.pop("return", None)
    given_: list[Any] = []
    for number, hint in enumerate(hints.values()):
        kinds = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else (hint,)
        if number == 0:
            given_.append(_line(kinds[0], text))
        elif type(None) in kinds:
            given_.append(None)
        else:
            usual = {str: "TOTAL_ERR_FATAL", float: 1000.0, int: 1, bool: True}
            given_.append(FIELDS if typing.get_origin(kinds[0]) is tuple else usual[kinds[0]])
    return given_


def _line(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if kind is bytes:
        return text.encode()
    if typing.get_args(kind):  # lines of the kernel log
        return [_line(typing.get_args(kind)[0], line) for line in text.split("\n")]
    return kind(time=1.0, text=text)


@pytest.mark.parametrize("name", PARSERS)
@given(text=ANY_TEXT)
@settings(max_examples=60)
def test_any_text(name: str, text: str) -> None:
    parser = PARSERS[name]
    parser(*arguments(parser, text))


@pytest.mark.parametrize("name", PARSERS)
def test_every_answer_of_a_node_whole_cut_and_drowned(name: str) -> None:
    """Also that of another program: who gives the wrong text to a parser must not break it."""
    parser = PARSERS[name]
    for text in TEXTS:
        for change in (lambda text: text, *GONE.values(), *WRAPPED.values()):
            parser(*arguments(parser, str(change(text))))


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_every_answer_of_a_node_cut_at_every_place(name: str) -> None:
    parser = PARSERS[name]
    for text in TEXTS:
        for at in range(min(len(text), 3000)):
            parser(*arguments(parser, text[:at]))


def test_parsers_are_found() -> None:
    assert len(PARSERS) >= 25
    assert {"gpu.parse_gpus", "xid.parse", "kernel_log.parse_kmsg", "nvlink.parse_nvlink"} <= set(
        PARSERS
    )
