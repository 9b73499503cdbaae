"""One error is one line that says where, what and the fix; one class is one exit code."""

from __future__ import annotations

import inspect

import pytest

from muster import errors
from muster.errors import MusterError, did_you_mean

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MusterError) and kind is not MusterError
]


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("it is wrong", "here: it is wrong. Fix: mend it"),
        ("it is wrong.", "here: it is wrong. Fix: mend it"),
        ("it is wrong. Did you mean 'x'?", "here: it is wrong. Did you mean 'x'? Fix: mend it"),
        ("two\n  lines", "here: two lines. Fix: mend it"),
    ],
)
def test_line(what: str, line: str) -> None:
    error = MusterError("here", what, "mend it")
    assert str(error) == line
    assert error.args == (line,)
    assert (error.where, error.what, error.fix) == ("here", what, "mend it")


def test_codes_are_those_of_sysexits_and_unique() -> None:
    assert {kind.__name__: kind.code for kind in CLASSES} == {
        "UsageError": 64, "DataError": 65, "UnavailableError": 69, "CreateError": 73,
        "StorageError": 74, "TemporaryError": 75, "ConfigError": 78,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "hint"),
    [("nodez", " Did you mean 'nodes'?"), ("nodes", " Did you mean 'nodes'?"), ("qqqq", "")],
)
def test_did_you_mean(word: str, hint: str) -> None:
    assert did_you_mean(word, ["nodes", "spares"]) == hint
