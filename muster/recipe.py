"""recipe.yaml: what a recipe runs, on how many nodes, and how patient the supervisor is with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from muster.config import build, override, read_yaml
from muster.errors import ConfigError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True)
class Command:
    """One command of a job. The journal remembers the finished ones."""

    name: str
    run: str  # a line for bash, in the snapshot of the recipe
    every_node: bool = True  # False: one rank on one node, for example to prepare data
    done_by: str = "DONE"  # "DONE": the file in RUN_DIR; "exit": exit code 0 is enough
    time_limit_s: Optional[float] = None  # for commands that do not beat


@dataclass(frozen=True)
class Hang:
    """Longest silence of a rank, by phase. During training: max(floor_s, factor x p99 step)."""

    floor_s: float = 30.0
    factor: float = 5.0
    setup_s: float = 1200.0
    save_s: float = 1800.0
    eval_s: float = 1800.0


@dataclass(frozen=True)
class Budget:
    """When to stop trying. Progress, not the number of failures, keeps a run alive."""

    same_place: int = 2  # software failures at the same training step without progress
    retry_blind: bool = True  # False: a program that fails without progress is not tried again
    no_progress: int = 8  # failures of any kind in a row without a new training step
    attempts: int = 200
    leave_s: float = 120.0  # wait for ranks that were asked to save and leave
    storage_s: float = 3600.0  # wait for a full or failing file system to recover


@dataclass(frozen=True)
class Checkpoints:
    """What becomes of checkpoints once they are published."""

    keep: int = 3  # newest verified ones that stay
    keep_every: int = 0  # those of every n-th training step stay for ever; 0: none for that
    local: bool = False  # nodes keep what their ranks wrote on their own disks, too
    archive: bool = False  # also copy to the site's object store
    archive_keep: int = 3  # newest ones that stay there, besides those of keep_every
    settle_s: float = 600.0  # at the end of a job: longest wait until copies are where they belong


@dataclass(frozen=True)
class LossGuard:
    """What to do when the loss is not what it should be."""

    action: str = "off"  # off; rollback: go back behind a checkpoint and leave the data out
    back: int = 1  # checkpoints to go back, behind the training step where it began
    spike_factor: float = 2.0  # times the median of the last losses
    spike_steps: int = 3  # training steps in a row
    resume_rtol: float = 0.02  # relative, the first losses after a resume against those of before
    max_rollbacks: int = 3  # of a run; then a person


@dataclass(frozen=True)
class Smoke:
    """How the harness runs the recipe for a few training steps on one CPU machine."""

    ranks: int = 2
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rehearsal:
    """How `./run faults` trains the recipe on CPUs while it is broken; none: it is left out."""

    steps: int = 100  # training steps: some 15 s of training on two idle cores
    # For the training command. {steps}; {every}: training steps between checkpoints; {share}: 12
    # over the number of ranks, which may be 1, 2, 3, 4, 6 or 12.
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Recipe:
    """A whole recipe.yaml."""

    name: str
    summary: str
    nodes: int
    commands: list[Command]
    spares: int = 0
    ranks_per_node: Optional[int] = None  # None: what the site says
    hang: Hang = field(default_factory=Hang)
    budget: Budget = field(default_factory=Budget)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    loss_guard: LossGuard = field(default_factory=LossGuard)
    smoke: Smoke = field(default_factory=Smoke)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)


def load_recipe(folder: Path, assignments: Optional[list[str]] = None) -> Recipe:
    """Read and check recipe.yaml of a recipe's folder.

    Args:
        folder: the recipe's folder.
        assignments: dotted overrides such as "hang.floor_s=5".

    Raises:
        ConfigError: no recipe there, unknown key, or a value that cannot work.
    """
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise ConfigError(
            str(folder), "holds no recipe.yaml", "name a recipe's folder, e.g. recipes/llama2_fsdp"
        )
    values = override(read_yaml(path), assignments or [])
    recipe = build(Recipe, values, str(path))
    _check(recipe, str(path))
    return recipe


def _check(recipe: Recipe, where: str) -> None:
    if not _NAME.fullmatch(recipe.name):
        raise ConfigError(f"{where}: name", f"'{recipe.name}' is no name", "use a-z 0-9 _ -")
    if recipe.nodes < 1:
        raise ConfigError(f"{where}: nodes", f"{recipe.nodes} is below 1", "nodes: 1 or more")
    if recipe.spares < 0:
        raise ConfigError(f"{where}: spares", f"{recipe.spares} is below 0", "spares: 0 or more")
    if recipe.ranks_per_node is not None and recipe.ranks_per_node < 1:
        raise ConfigError(f"{where}: ranks_per_node", "is below 1", "leave it out or give 1 to 16")
    names = [command.name for command in recipe.commands]
    if not names:
        raise ConfigError(f"{where}: commands", "is empty", "name at least one command")
    for command in recipe.commands:
        if names.count(command.name) > 1:
            raise ConfigError(f"{where}: commands", f"'{command.name}' twice", "give unique names")
        _check_command(command, f"{where}: commands: {command.name}")
    if sum(command.done_by == "DONE" for command in recipe.commands) > 1:
        fix = "write done_by: exit at all but the one that trains"
        raise ConfigError(f"{where}: commands", "more than one is done by the file DONE", fix)
    _check_patience(recipe, where)
    _check_checkpoints(recipe.checkpoints, f"{where}: checkpoints")
    _check_loss_guard(recipe, f"{where}: loss_guard")


def _check_command(command: Command, where: str) -> None:
    if not command.run.strip():
        raise ConfigError(where, "'run' is empty", "add a line")
    if command.done_by not in ("DONE", "exit"):
        raise ConfigError(
            f"{where}: done_by", f"'{command.done_by}' is unknown", "use DONE or exit"
        )
    if command.time_limit_s is not None and not command.time_limit_s > 0:
        raise ConfigError(f"{where}: time_limit_s", "must be above 0", "leave it out")


def _check_patience(recipe: Recipe, where: str) -> None:
    for part, names in (
        ("hang", ("floor_s", "factor", "setup_s", "save_s", "eval_s")),
        ("budget", ("same_place", "no_progress", "attempts", "leave_s", "storage_s")),
    ):
        for name in names:
            if not getattr(getattr(recipe, part), name) > 0:  # NaN is not either
                raise ConfigError(f"{where}: {part}.{name}", "must be above 0", "give more than 0")


def _check_checkpoints(kept: Checkpoints, where: str) -> None:
    if kept.keep < 1:
        raise ConfigError(f"{where}.keep", f"{kept.keep} is below 1", "keep: 1 or more; 3 is safe")
    if kept.keep_every < 0:
        raise ConfigError(f"{where}.keep_every", f"{kept.keep_every} is below 0", "keep_every: 0")
    if kept.archive_keep < 1:
        what = f"{kept.archive_keep} is below 1"
        raise ConfigError(f"{where}.archive_keep", what, "archive_keep: 1 or more")
    if not kept.settle_s > 0:
        raise ConfigError(f"{where}.settle_s", "must be above 0", "settle_s: 600")


def _check_loss_guard(recipe: Recipe, where: str) -> None:
    guard = recipe.loss_guard
    if guard.action not in ("off", "rollback"):
        raise ConfigError(f"{where}.action", f"'{guard.action}' is unknown", "use off or rollback")
    for name in ("back", "spike_steps", "max_rollbacks"):
        if getattr(guard, name) < 1:
            raise ConfigError(f"{where}.{name}", "is below 1", "give 1 or more")
    if not guard.spike_factor > 1:
        raise ConfigError(f"{where}.spike_factor", "must be above 1", "spike_factor: 2")
    if not guard.resume_rtol >= 0:
        raise ConfigError(f"{where}.resume_rtol", "is below 0", "resume_rtol: 0.02")
    if guard.action != "off" and recipe.checkpoints.keep <= guard.back:
        what = f"{guard.back} checkpoints back, but only {recipe.checkpoints.keep} are kept"
        raise ConfigError(f"{where}.back", what, f"checkpoints.keep={guard.back + 2}")
