"""Recipes as they are rehearsed: small, on CPUs, copied to where a user would put them."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from muster.recipe import load_recipe
from tests.faults.fault import HERE, Fault
from tests.sessions.environment import alone, belongs_here

ROOT = HERE.parents[1]
SABOTAGE = HERE / "sabotage"
PLACES = (ROOT / "tests" / "data" / "recipes", ROOT / "recipes")
RANKS, EVERY, BATCH = 2, 5, 12
"""Ranks of the undisturbed run; training steps between checkpoints; samples of a training step."""

START_S = 60
"""Longest silence before the first training step; limits in faults count on it."""

_NOT_COPIED = shutil.ignore_patterns("runs", "data", "__pycache__")


@dataclass(frozen=True)
class Twin:
    """A recipe that says in recipe.yaml how it is rehearsed."""

    folder: Path
    steps: int
    overrides: tuple[str, ...]  # for the training command, with {steps}, {every} and {share}
    is_python: bool

    @property
    def name(self) -> str:
        """Of the recipe."""
        return self.folder.name

    @property
    def start_s(self) -> int:
        """Longest silence before the first training step: large libraries take long to import."""
        return 240 if self.name in alone() else START_S

    @property
    def patience(self) -> list[str]:
        """Words before "--": a hang is to be found within the run, also before it trains."""
        return ["hang.floor_s=8", f"hang.setup_s={self.start_s}", "budget.storage_s=120"]

    def training(self, ranks: int, steps: int | None = None) -> list[str]:
        """Words after "--"."""
        facts = {"steps": steps or self.steps, "every": EVERY, "share": BATCH // ranks}
        return [word.format(**facts) for word in self.overrides]


def discover(*, anywhere: bool = False) -> dict[str, Twin]:
    """{name: twin} of all recipes that can be rehearsed in this environment, or in any."""
    found = {}
    for path in sorted(path for place in PLACES for path in place.glob("*/recipe.yaml")):
        recipe = load_recipe(path.parent)
        if recipe.rehearsal.overrides and (anywhere or belongs_here(recipe.name)):
            (training,) = [one for one in recipe.commands if one.done_by == "DONE"]
            python = "python" in training.run or "torchrun" in training.run
            found[recipe.name] = Twin(
                path.parent, recipe.rehearsal.steps, tuple(recipe.rehearsal.overrides), python
            )
    return found


def applies(fault: Fault, twin: Twin) -> bool:
    """Whether a recipe can meet this fault."""
    bash = fault.sabotage is None or bool(fault.sabotage.bash)
    return twin.is_python or (bash and not fault.python)


def copy(twin: Twin, target: Path, fault: Fault, fuse: Path) -> Path:
    """Copy the recipe as a user does, and change only how its commands are called."""
    shutil.copytree(twin.folder, target, ignore=_NOT_COPIED)
    path = target / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    for command in recipe["commands"]:
        if command.get("done_by", "DONE") == "DONE":
            command["run"] = _surround(command["run"], fault, fuse)
    extra = [_command(number, line) for number, line in enumerate(fault.commands, 1)]
    recipe["commands"][:0] = extra
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return target


def _command(number: int, line: str) -> dict[str, Any]:
    return {"name": f"extra{number}", "run": line, "every_node": False, "done_by": "exit"}


def _surround(line: str, fault: Fault, fuse: Path) -> str:
    """The training command with the fault's environment in front."""
    values = dict(fault.environment)
    if fault.sabotage is not None:
        own = fault.sabotage
        values |= {
            "SABOTAGE_PYTHON": shlex.quote(own.python),
            "SABOTAGE_BASH": shlex.quote(own.bash),
            "SABOTAGE_MOMENT": own.moment,
            "SABOTAGE_STEP": str(own.step),
            "SABOTAGE_ONCE": "yes" if own.once else "",
            "SABOTAGE_FUSE": shlex.quote(str(fuse)),
            "BASH_ENV": shlex.quote(str(SABOTAGE / "bash_env")),
            "PYTHONPATH": shlex.quote(str(SABOTAGE)) + ':"$PYTHONPATH"',
        }
    words = [f"{key}={value}" for key, value in values.items()]
    return " ".join(["env", *words, line]) if words else line
