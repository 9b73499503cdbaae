"""Runs `publish` in children that die at one line after the other; says on one line what was wrong.

python killed_makers.py SHARED LOCAL: a program of its own, since it forks.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

sys.path[:0] = [str(Path(__file__).resolve().parents[3])]

from muster.image import publish as module  # noqa: E402
from muster.image.publish import Patience, publish  # noqa: E402
from muster.image.squash import require_whole  # noqa: E402
from tests.unit.image.squash_files import write_squash  # noqa: E402

QUICK = Patience(beat_s=0.01, silent_s=0.05, poll_s=0.001, limit_s=60)


def die_at(number: int) -> None:
    """Kill this process when it comes to the n-th line of publish.py."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]


def killed(target: Path, local: Path, number: int) -> bool:
    """Whether a maker died at that line; False: it has fewer."""
    child = os.fork()
    if child == 0:
        die_at(number)
        publish(target, write_squash, require_whole, local, QUICK)
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def main() -> int:
    shared, local = map(Path, sys.argv[1:])
    number, made = 1, 0
    target = shared / "image.sqsh"
    while killed(target, local, number):
        named = target.exists()
        if named:
            require_whole(target)
            made += 1
        publish(target, write_squash, require_whole, local, QUICK)
        require_whole(target)
        left = {path.name for path in shared.iterdir()} - {target.name}
        if left and not named:
            print(f"killed at line {number}: the next one leaves {left}")
            return 1
        for path in shared.iterdir():
            path.unlink()
        number += 1
    print(f"{number - 1} deaths, {made} after the name was given, local: {list(local.iterdir())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
