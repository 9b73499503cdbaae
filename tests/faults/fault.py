"""What a fault is: a verb that breaks a running training, and what has to come of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults.stage import Stage

HERE = Path(__file__).resolve().parent
AREAS = ("process", "node", "checkpoint", "scheduler")


@dataclass(frozen=True)
class Expected:
    """What has to come of a run."""

    end: str  # done or stopped
    cause: str | None = None  # of the first incident in the journal; None: there is none
    action: str | None = None  # the verdict on the attempt that it ended
    exit_code: int | None = None  # of a stop
    loses: int = 2  # checkpoint intervals that may have to be done again; 0: no training step

    def __str__(self) -> str:
        if self.end == "stopped":
            return f"stopped: {self.cause}, exit code {self.exit_code}"
        if self.action is None:
            return "goes on"
        return f"{self.action}: {self.cause}" if self.cause else self.action


def recovers(action: str, cause: str | None = None, *, loses: int = 2) -> Expected:
    """The run is complete in the end, bit for bit as if nothing had happened."""
    return Expected("done", cause, action, loses=loses)


def goes_on() -> Expected:
    """Nothing has to be done about it."""
    return Expected("done", loses=0)


def stops(cause: str, exit_code: int) -> Expected:
    """Only a person can help; the run says why and what to do, and does not come back."""
    return Expected("stopped", cause, "stop", exit_code)


@dataclass(frozen=True)
class Sabotage:
    """What a rank does to itself when its moment comes; `sabotage/` brings it into the rank.

    Attributes:
        python: source that a rank in Python runs.
        bash: source that a rank in bash runs; empty: the fault does not apply to one.
        moment: "start": when the program starts. "step": before training step `step`. "publish":
            before a checkpoint gets its name. "published": right after it got it.
        step: the training step, for moment "step".
        ranks: which ranks do it; None: all.
        once: a rank does it once in the whole run; False: whenever the moment comes.
        armed: from the start; False: from `Stage.arm` on.
    """

    python: str
    bash: str = ""
    moment: str = "step"
    step: int = 17
    ranks: tuple[int, ...] | None = None
    once: bool = True
    armed: bool = True


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        strike: does it, while the run trains.
        expected: what has to come of it.
        options: for sbatch.
        words: for `muster run`.
        environment: for the ranks; values as a shell reads them.
        sabotage: what ranks do to themselves.
        commands: shell lines that run as commands of the job before the recipe's own.
        own_disk: RUN_DIR lies on a small shared disk that may be filled.
        ranks: the run starts with so many; 2 as the undisturbed run, only then are losses compared.
        python: only for recipes whose ranks are Python.
        storm: may strike at any moment, again and again.
        ci: recipes on which CI runs it.
        limit_s: longest wait for the end.
    """

    strike: Callable[[Stage], None]
    expected: Expected
    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sabotage: Sabotage | None = None
    commands: tuple[str, ...] = ()
    own_disk: bool = False
    ranks: int = 2
    python: bool = False
    storm: bool = False
    ci: tuple[str, ...] = ()
    limit_s: float = 240.0

    @property
    def area(self) -> str:
        """The folder that it lies in."""
        return self.strike.__module__.split(".")[-2]

    @property
    def name(self) -> str:
        """The verb in words."""
        return self.strike.__name__.replace("_", " ")

    @property
    def emulates(self) -> str:
        """What it stands for: the docstring of its file."""
        return " ".join((sys.modules[self.strike.__module__].__doc__ or "").split())


def fault(expected: Expected, **facts: Any) -> Callable[[Callable[[Stage], None]], Fault]:
    """Make a fault of a verb; `facts` as in `Fault`."""

    def make(strike: Callable[[Stage], None]) -> Fault:
        return Fault(strike, expected, **facts)

    return make


def discover() -> dict[str, Fault]:
    """{name of the file: fault}, area by area in the order of the names.

    Raises:
        LookupError: a file holds no fault, several, or one of another name.
    """
    found = {}
    for area in AREAS:
        for path in sorted((HERE / area).glob("*.py")):
            module = importlib.import_module(f"tests.faults.{area}.{path.stem}")
            faults = [value for value in vars(module).values() if isinstance(value, Fault)]
            if [one.strike.__name__ for one in faults] != [path.stem]:
                raise LookupError(f"{path}: has to hold one fault, a function {path.stem}")
            found[path.stem] = faults[0]
    return found
