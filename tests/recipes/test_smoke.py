"""`nox -s smoke`: every recipe, discovered, a few training steps on this machine without Slurm.

A recipe without a recorded golden fails here, so none can be forgotten.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.recipe import load_recipe

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.parent for path in ROOT.glob("recipes/*/recipe.yaml"))


@pytest.mark.parametrize("folder", RECIPES, ids=lambda path: path.name)
def test_smoke(folder: Path, launch: Any, tmp_path: Path) -> None:
    golden = json.loads((ROOT / "tests" / "golden" / f"{folder.name}.json").read_text())
    ignored = shutil.ignore_patterns("data", "runs", "__pycache__")
    copy = Path(shutil.copytree(folder, tmp_path / "a copy", ignore=ignored))
    recipe = load_recipe(copy)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in recipe.commands:
        if command.done_by == "exit":
            env = {**os.environ, "PATH": path}
            subprocess.run(["bash", "-c", command.run], cwd=copy, env=env, check=True, timeout=300)
    ranks = launch(copy, tmp_path / "run", recipe.smoke.ranks, *recipe.smoke.overrides)
    assert ranks.codes() == [0] * recipe.smoke.ranks, ranks.errors()
    losses = {str(step): line["loss"] for step, line in ranks.metrics().items()}
    assert losses == pytest.approx(golden["loss"], rel=golden["rtol"])
    assert ranks.done() is not None


def test_there_are_recipes() -> None:
    assert RECIPES
