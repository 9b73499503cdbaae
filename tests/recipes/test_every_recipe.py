"""Every recipe, discovered: its folder is complete, short, explained, and stands alone."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.parent for path in ROOT.glob("recipes/*/recipe.yaml"))
SHARED = ROOT / "recipes"
each_recipe = pytest.mark.parametrize("folder", RECIPES, ids=lambda path: path.name)


@each_recipe
def test_folder_is_complete(folder: Path) -> None:
    wanted = (
        "README.md",
        "run.sbatch",
        "train.py",
        "prepare.py",
        "config.yaml",
        "requirements.txt",
    )
    assert [name for name in wanted if not (folder / name).is_file()] == []
    assert (ROOT / "tests" / "golden" / f"{folder.name}.json").is_file()
    assert list((folder / "sizes").glob("*.yaml"))


@each_recipe
def test_it_says_how_it_is_rehearsed(folder: Path) -> None:
    """Else no fault would ever strike it, and nobody would notice."""
    assert load_recipe(folder).rehearsal.overrides


@each_recipe
def test_train_reads_top_to_bottom(folder: Path) -> None:
    assert len((folder / "train.py").read_text().splitlines()) <= 400


@each_recipe
def test_nothing_of_ours_is_imported_but_resume(folder: Path) -> None:
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    assert found & {"muster", "healthcheck", "tests"} == set()
    assert "resume" in found


@each_recipe
def test_no_fact_of_a_site(folder: Path) -> None:
    """Fabric variables, mounts and partitions belong to the cluster."""
    texts = [*folder.glob("*.py"), *folder.glob("*.yaml"), folder / "run.sbatch"]
    for path in texts:
        assert (
            re.findall(r"/fsx\b|\bNCCL_\w+|\bFI_\w+|--partition|--account", path.read_text()) == []
        )


@each_recipe
def test_every_file_stands_in_the_readme(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    names = [p.name for p in folder.glob("*.py")] + [p.name for p in folder.glob("*.yaml")]
    assert [name for name in sorted(names) if f"`{name}`" not in readme] == []


def keys(path: Path) -> set[str]:
    tree: dict[str, Any] = yaml.safe_load(path.read_text())
    return {f"{section}.{key}" for section, values in tree.items() for key in values}


@each_recipe
def test_every_option_is_explained(folder: Path) -> None:
    """A reason beside each option of config.yaml, and a row in the README's table."""
    readme = (folder / "README.md").read_text()
    files = [folder / "config.yaml", *folder.glob("sizes/*.yaml"), *folder.glob("layouts/*.yaml")]
    options = set().union(*(keys(path) for path in files))
    assert [name for name in sorted(options) if f"`{name}`" not in readme] == []
    for line in (folder / "config.yaml").read_text().splitlines():
        if line.startswith("  ") and not line.strip().startswith("#"):
            assert "#" in line, line


def test_files_that_say_the_same_are_the_same() -> None:
    """A recipe is copied whole, so some files stand in several; the first line is the promise."""
    said: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for folder in RECIPES:
        for path in sorted([*folder.glob("*.py"), *folder.glob("corpus/*")]):
            name = path.relative_to(folder).as_posix()
            first = path.read_text().splitlines()[0] if path.suffix == ".py" else ""
            said[name, first].append(path)
    different = [
        f"{path.relative_to(SHARED)} is not {paths[0].relative_to(SHARED)}"
        for paths in said.values()
        for path in paths[1:]
        if path.read_bytes() != paths[0].read_bytes()
    ]
    assert different == []


@each_recipe
def test_readme_says_what_is_tested_of_other_layouts(folder: Path) -> None:
    golden = json.loads((ROOT / "tests" / "golden" / f"{folder.name}.json").read_text())
    readme = " ".join((folder / "README.md").read_text().split())
    ranks = load_recipe(folder).smoke.ranks
    for other in golden["layouts"]:
        limit = f"{other['rtol']:.0e}".replace("e-0", "e-")
        is_split = any(word.startswith("parallel.tensor") for word in other["words"])
        named = "" if is_split else f"{ranks} to {other['ranks']} to {ranks})"
        assert f"within {limit} (tested {named}" in readme


@each_recipe
def test_main_readme_has_a_row(folder: Path) -> None:
    assert f"| `{folder.name}` |" in (ROOT / "README.md").read_text()


@each_recipe
def test_page_of_framework_equality_has_its_tolerances(folder: Path) -> None:
    golden = json.loads((ROOT / "tests" / "golden" / f"{folder.name}.json").read_text())
    page = (ROOT / "docs" / "reference" / "framework_equality.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{folder.name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    if golden["equality"] is None:
        assert cells[1].startswith("not compared: ")
        return
    limits = [float(cell) for cell in cells[2:4]]
    assert limits == [golden["equality"]["first"], golden["equality"]["curve"]]
    for seen, limit in zip(cells[4:], limits, strict=True):
        assert float(seen) <= limit
