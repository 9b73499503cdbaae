"""Runs one step: check, apply, check again; a time limit on each, retries with growing pauses."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lifecycle
from lifecycle.runner import secrets
from lifecycle.runner.step import Step
from muster import process

RC_DIFFERS = 10
"""A check ends with it when there is something to do; any other code but 0 is a failure."""
HOPELESS = (64, 65, 78)
"""Exit codes of a step that trying again cannot help: usage, data, configuration."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_TAIL_LINES = 20
_HOME = Path(lifecycle.__file__).parents[1]
"""The archive, or the checkout, that this muster runs from."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Places:
    """Where things are on this node."""

    state: Path  # ledger, lock, facts; on the local disk
    logs: Path  # one file per step
    secrets: Path  # files that only root reads
    lib: Path  # bash that steps share

    def create(self) -> None:
        """Make the folders."""
        for folder, mode in ((self.state, 0o755), (self.logs, 0o755), (self.secrets, 0o700)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)


@dataclass(frozen=True)
class Outcome:
    """How one step ended."""

    state: str  # unchanged, changed, differs (dry run) or failed
    rc: int = 0
    tail: tuple[str, ...] = ()  # last lines of output, without secrets
    tries: int = 1
    seconds: float = 0.0


def run_step(
    step: Step,
    places: Places,
    *,
    dry: bool,
    again: bool,
    on_apply: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Bring one step about, or with `dry` only look.

    Args:
        step: which.
        places: where state, logs and secrets are.
        dry: only check.
        again: apply even if the check finds nothing to do.
        on_apply: called before the first change.
        pause: waits that many seconds between tries.
    """
    began = time.monotonic()
    for number in range(1, step.tries + 1):
        state, rc, tail = _once(step, places, dry=dry, again=again, on_apply=on_apply)
        outcome = Outcome(state, rc, tail, number, round(time.monotonic() - began, 3))
        if state != "failed" or dry or rc in HOPELESS or number == step.tries:
            return outcome
        pause(min(_FIRST_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S))
    raise AssertionError("tries is above 0")


def _once(
    step: Step, places: Places, *, dry: bool, again: bool, on_apply: Callable[[], None]
) -> tuple[str, int, tuple[str, ...]]:
    rc, tail = _call(step, "check", places)
    if rc == 0 and not (again and not dry):
        return "unchanged", 0, tail
    if dry:
        return ("differs", 0, tail) if rc == RC_DIFFERS else ("failed", rc, tail)
    if rc not in (0, RC_DIFFERS):
        return "failed", rc, tail
    on_apply()
    rc, tail = _call(step, "apply", places)
    if rc != 0:
        return "failed", rc, tail
    rc, after = _call(step, "check", places)
    if rc == 0:
        return "changed", 0, tail
    return "failed", rc, (*tail, "applied, and still:", *after)[-_TAIL_LINES:]


def _call(step: Step, verb: str, places: Places) -> tuple[int, tuple[str, ...]]:
    environment = {
        **os.environ,
        "PATH": f"{os.environ.get('PATH', '')}:{_PATH}",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "MUSTER_FACTS": str(places.state / "facts.sh"),
        "MUSTER_STATE": str(places.state),
        "MUSTER_SECRETS": str(places.secrets),
        "MUSTER_LIB": str(places.lib),
        "MUSTER_HOME": str(_HOME),
        "MUSTER_PYTHON": sys.executable,
    }
    done = process.run(["bash", str(step.path.absolute()), verb], step.limit_s, env=environment)
    hidden = secrets.known(places.secrets)
    text = secrets.without(done.out + done.err, hidden)
    if done.timed_out:
        text += f"\nno end within {step.limit_s} s, stopped\n"
    _log(places.logs / f"{step.name}.log", verb, done.rc, text)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return (124 if done.timed_out else done.rc), tuple(lines[-_TAIL_LINES:])


def _log(path: Path, verb: str, rc: int, text: str) -> None:
    """Append to the step's log. A full disk must not hide why the step failed."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {verb}: exit code {rc}\n{text}")
    except OSError:
        pass
