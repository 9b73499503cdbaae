"""Before the ranks start: who does not see the checkpoint is put out, unless many do not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from muster.recipe import Command
from resume.attempt import Attempt
from resume.checkpoint import Picked
from resume.fleet import NodeView

NODES = ("n1", "n2", "n3", "n4")
PICKED = Picked(Path("/runs/7/checkpoints/step_00000005"), 5, sha256="a0")


class Nodes:
    """Guards that answer `prepare` at once, as much as they can."""

    def __init__(self, blind: tuple[str, ...], mute: tuple[str, ...]) -> None:
        self.nodes = {name: NodeView() for name in NODES}
        self.blind, self.mute = blind, mute
        self.see: Any = None

    def prepare(self, attempt: int, _beats: Path, *, fresh: bool, see: Any) -> None:
        assert fresh
        self.see = see
        for name, view in self.nodes.items():
            if name not in self.mute:
                view.ready, view.unseen = attempt, "gone" if name in self.blind else ""


class Supervisor:
    def __init__(self, fleet: Nodes) -> None:
        self.fleet = fleet
        self.out: dict[str, str] = {}
        self.incidents: list[tuple[str, Any]] = []
        self.custody = SimpleNamespace(local_folder=None)
        self.allocation = SimpleNamespace(
            condemn=self.out.__setitem__,
            without_answer=lambda names: [n for n in names if n in fleet.mute],
        )

    def wait_for(self, condition: Callable[[], bool], _timeout_s: float) -> bool:
        assert condition(), "it would be waited for"
        return True

    def note_incident(self, cause: str, node: Any, _why: str) -> None:
        self.incidents.append((cause, node))


@pytest.mark.parametrize(
    ("blind", "mute", "verdict", "out"),
    [
        ((), (), None, []),
        (("n3",), (), ("swap", "node_unfit", "n3"), ["n3"]),
        (("n2", "n3"), (), ("swap", "node_unfit", "n2"), ["n2", "n3"]),
        (("n2", "n3", "n4"), (), ("wait", "storage", None), []),  # that is no node's fault
        ((), ("n4",), ("swap", "node_lost", "n4"), ["n4"]),
        (("n3",), ("n4",), ("swap", "node_lost", "n4"), ["n4"]),
    ],
)
def test_ready(
    blind: tuple[str, ...], mute: tuple[str, ...], verdict: Any, out: list[str], tmp_path: Path
) -> None:
    s = Supervisor(Nodes(blind, mute))
    attempt = Attempt(s, Command("train", "x"), NODES, PICKED)  # type: ignore[arg-type]
    found = attempt.get_ready(3, tmp_path)
    assert (found and (found.action, found.cause, found.node)) == verdict
    assert list(s.out) == out
    assert s.incidents == ([verdict[1:]] if verdict else [])
    assert (s.fleet.see.path, s.fleet.see.sha256) == (PICKED.path, "a0")


def test_from_the_start_there_is_nothing_to_see(tmp_path: Path) -> None:
    s = Supervisor(Nodes((), ()))
    attempt = Attempt(s, Command("train", "x"), NODES, Picked(None, 0))  # type: ignore[arg-type]
    assert attempt.get_ready(3, tmp_path) is None
    assert s.fleet.see is None
