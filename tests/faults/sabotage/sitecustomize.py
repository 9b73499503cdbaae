"""Inside a rank: does what a fault says when its moment comes. Python imports this at its start.

The recipe's files stay as they are; its command gets this folder on PYTHONPATH (and `bash_env`
as BASH_ENV). `Run.beat` tells the training step. The moments of a checkpoint are seen as Python
itself reports them, by audit events of os.rename, so they do not depend on how resume is written.
"""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

_PUBLISHED = re.compile(r"step_\d{8,}")


def kill_rank() -> None:
    """SIGKILL every process of this rank, a shell around it too, this one last."""
    pids = [os.getpid()]
    while b"\0RANK=" in b"\0" + Path(f"/proc/{_parent(pids[-1])}/environ").read_bytes():
        pids.append(_parent(pids[-1]))
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[1])


def _strike() -> None:
    """The fault's own source, if its fuse is there; `once` burns the fuse first."""
    fuse = Path(f"{os.environ['SABOTAGE_FUSE']}.{os.environ['RANK']}")
    if os.environ["SABOTAGE_ONCE"]:
        try:
            fuse.unlink()
        except FileNotFoundError:
            return
    elif not fuse.exists():
        return
    exec(os.environ["SABOTAGE_PYTHON"], {"kill_rank": kill_rank})


def _at_step(step: int) -> None:
    import resume.run  # only a rank can

    beat = resume.run.Run.beat

    def beat_and_strike(self: resume.run.Run, phase: str, now: int | None = None) -> None:
        beat(self, phase, now)
        if phase == "step" and now is not None and now >= step:
            _strike()

    resume.run.Run.beat = beat_and_strike  # type: ignore[assignment,method-assign]


def _at_publication(*, after: bool) -> None:
    seen = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if seen and event in ("open", "os.listdir", "os.scandir"):  # the rename has happened
            seen = False
            _strike()
        if event == "os.rename" and _PUBLISHED.fullmatch(Path(os.fsdecode(arguments[1])).name):
            seen = after
            if not after:
                _strike()

    sys.addaudithook(hook)


if "RANK" in os.environ and os.environ.get("SABOTAGE_PYTHON"):
    if os.environ["SABOTAGE_MOMENT"] == "start":
        _strike()
    elif os.environ["SABOTAGE_MOMENT"] == "step":
        _at_step(int(os.environ["SABOTAGE_STEP"]))
    else:
        _at_publication(after=os.environ["SABOTAGE_MOMENT"] == "published")
