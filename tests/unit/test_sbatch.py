"""Every script for sbatch has what lets its job survive, and asks for the nodes of its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("recipes/*/run.sbatch"), ROOT / "slurm" / "template.sbatch"])
SURVIVAL = {"--no-kill", "--requeue", "--open-mode=append", "--ntasks-per-node=1", "--exclusive"}


def options(script: Path) -> set[str]:
    lines = script.read_text(encoding="utf-8").splitlines()
    return {line.split()[1] for line in lines if line.startswith("#SBATCH ")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_script_survives(script: Path) -> None:
    assert options(script) >= SURVIVAL
    assert any(option.startswith("--signal=B:USR1@") for option in options(script))
    assert script.read_text(encoding="utf-8").endswith('exec muster run "$@"\n')


@pytest.mark.parametrize("script", SCRIPTS[:-1], ids=lambda path: path.parent.name)
def test_script_asks_for_the_nodes_of_the_recipe(script: Path) -> None:
    recipe = load_recipe(script.parent)
    assert f"--nodes={recipe.nodes + recipe.spares}" in options(script)


def test_script_without_a_recipe_survives_too() -> None:
    script = ROOT / "slurm" / "auto_resume.sbatch"
    found = options(script)
    assert found >= SURVIVAL - {"--ntasks-per-node=1"}  # srun's tasks are the ranks
    assert any(option.startswith("--signal=B:USR1@") for option in found)
    assert "exec srun --auto-resume=1 --nodes=2 " in script.read_text(encoding="utf-8")
    assert "--nodes=3" in found  # one spare


def test_every_recipe_has_a_script() -> None:
    recipes = {path.parent for path in ROOT.glob("recipes/*/recipe.yaml")}
    assert recipes == {script.parent for script in SCRIPTS[:-1]}
