"""Work in a forked child: what it returns, how it ended, and that too late is not a finding."""

from __future__ import annotations

import os
import signal

import pytest

from tests.harness import child


def test_what_it_returns_and_how_it_ended() -> None:
    assert child.in_child(lambda: [1, {"a": None}]) == [1, {"a": None}]
    assert child.in_child(lambda: 1 / 0).startswith("!ZeroDivisionError: ")
    assert child.in_child(lambda: os._exit(76)) == "!ended with 76"
    assert child.in_child(lambda: os.kill(os.getpid(), signal.SIGKILL)) == "!ended with -9"


def test_one_that_takes_too_long_is_an_error_and_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine "it does not work without this" would be found of anything."""
    monkeypatch.setattr(child, "LIMIT_S", 1)
    with pytest.raises(TimeoutError, match="not through after 1 s"):
        child.in_child(signal.pause)


@pytest.mark.torch
def test_a_child_computes_after_its_parent_has_used_several_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the thread that forks lives on in a child."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(child, "LIMIT_S", 60)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.ones(1 << 20).sum() == 1 << 20
        assert child.in_child(lambda: float(torch.ones(1 << 20).sum())) == 1 << 20
    finally:
        torch.set_num_threads(before)
