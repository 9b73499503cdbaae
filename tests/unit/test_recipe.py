"""recipe.yaml: every recipe of the repository, and every way to get one wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.recipe import Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted({path.parent for path in ROOT.glob("recipes/*/recipe.yaml")})
RECIPES += sorted(path.parent for path in ROOT.glob("tests/data/recipes/*/recipe.yaml"))
NAMES = [str(path.relative_to(ROOT)) for path in RECIPES]


def asked(sbatch: Path) -> dict[str, str]:
    """{option: value} of the #SBATCH lines, flags with an empty value."""
    pattern = r"^#SBATCH --([a-z-]+)(?:=(\S+))?"
    return dict(re.findall(pattern, sbatch.read_text(), re.MULTILINE))


def test_recipes_are_found() -> None:
    assert "recipes/llama2_fsdp" in NAMES


@pytest.mark.parametrize("folder", RECIPES, ids=NAMES)
def test_recipe_is_valid_and_asks_slurm_for_nodes_and_spares(folder: Path) -> None:
    recipe = load_recipe(folder)
    options = asked(folder / "run.sbatch")
    assert recipe.name == folder.name
    assert int(options["nodes"]) == recipe.nodes + recipe.spares
    assert options["job-name"] == recipe.name
    assert {"no-kill", "requeue"} <= set(options)
    assert options["open-mode"] == "append"
    assert recipe.commands[-1].done_by == "DONE"


BASE = """\
name: r
summary: s
nodes: 2
commands:
  - { name: train, run: python train.py }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(BASE)
    return tmp_path


def test_defaults(folder: Path) -> None:
    recipe = load_recipe(folder)
    command = recipe.commands[0]
    assert (recipe.spares, recipe.ranks_per_node, recipe.hang.floor_s) == (0, None, 30.0)
    assert (command.every_node, command.done_by, command.time_limit_s) == (True, "DONE", None)
    assert recipe.budget.same_place == 2


@pytest.mark.parametrize(
    ("assignment", "key", "wanted"),
    [
        ("nodes=16", "nodes", 16),
        ("spares=0", "spares", 0),
        ("hang.floor_s=5", "hang.floor_s", 5.0),
        ("budget.attempts=7", "budget.attempts", 7),
        ("ranks_per_node=4", "ranks_per_node", 4),
        ("smoke.overrides=[a=1]", "smoke.overrides", ["a=1"]),
    ],
)
def test_override(assignment: str, key: str, wanted: object, folder: Path) -> None:
    value: object = load_recipe(folder, [assignment])
    for part in key.split("."):
        value = getattr(value, part)
    assert value == wanted


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("nodes=0", "nodes: 0 is below 1"),
        ("nodes=-1", "nodes: -1 is below 1"),
        ("nodes=two", "nodes: 'two' is str, not int"),
        ("nodes=", "nodes: None is NoneType, not int"),
        ("spares=-1", "spares: -1 is below 0"),
        ("ranks_per_node=0", "ranks_per_node: is below 1"),
        ("name=No Name", "name: 'No Name' is no name"),
        ("name=../x", "name: '../x' is no name"),
        ("nodse=3", "unknown key 'nodse'. Did you mean 'nodes'?"),
        ("hang.flor_s=3", "hang: unknown key 'flor_s'. Did you mean 'floor_s'?"),
        ("hang.floor_s=0", "hang.floor_s: must be above 0"),
        ("hang.factor=.nan", "hang: factor: nan is no number"),
        ("hang.save_s=-3", "hang.save_s: must be above 0"),
        ("budget.same_place=0", "budget.same_place: must be above 0"),
        ("budget.leave_s=0", "budget.leave_s: must be above 0"),
        ("commands=[]", "commands: is empty"),
        ("commands=[{name: a, run: ' '}]", "commands: a: 'run' is empty"),
        ("commands=[{name: a}]", "commands[0]: key 'run' is missing"),
        ("commands=[{name: a, run: b}, {name: a, run: c}]", "commands: 'a' twice"),
        ("commands=[{name: a, run: b, done_by: hope}]", "commands: a: done_by: 'hope' is unknown"),
        ("commands=[{name: a, run: b, time_limit_s: 0}]", "a: time_limit_s: must be above 0"),
        ("commands=[{name: a, run: b, runs: c}]", "unknown key 'runs'. Did you mean 'run'?"),
    ],
)
def test_wrong_recipe_is_one_line_and_78(assignment: str, said: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(folder, [assignment])
    line = str(caught.value)
    assert said in line
    assert line.startswith(f"{folder}/recipe.yaml")
    assert ("\n" not in line, caught.value.code, bool(caught.value.fix)) == (True, 78, True)


@pytest.mark.parametrize("key", ["name", "summary", "nodes", "commands"])
def test_missing_key_is_named(key: str, folder: Path) -> None:
    path = folder / "recipe.yaml"
    path.write_text(re.sub(rf"^{key}:.*\n(  .*\n)*", "", BASE, flags=re.MULTILINE))
    with pytest.raises(ConfigError, match=rf"recipe.yaml: key '{key}' is missing"):
        load_recipe(folder)


def test_folder_without_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no recipe.yaml. Fix: name a recipe's folder"):
        load_recipe(tmp_path)


def test_recipe_is_frozen(folder: Path) -> None:
    with pytest.raises(AttributeError):
        load_recipe(folder).nodes = 3  # type: ignore[misc]
    assert isinstance(load_recipe(folder), Recipe)
