"""Imports point one way: what is below knows nothing of what is above.

The rule is the table. Everything is parsed and nothing imported, so a late import inside a function
counts too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STANDARD = frozenset(sys.stdlib_module_names)
ERRORS_AND_PROCESS = ("muster.errors", "muster.process")
NOUNS = (
    *(*ERRORS_AND_PROCESS, "muster.ordinary", "muster.argument_types", "muster.strict_yaml"),
    *("muster.config", "muster.site", "muster.recipe", "muster.slurm"),
)

# A module, or all below it -> what of ours it may import besides itself. The longest name rules.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "muster": (),  # the package itself stays empty: the part of resume below imports nothing of it
    "muster.errors": (),
    "muster.process": ("muster.errors",),
    "muster.argument_types": (),
    "muster.strict_yaml": (),
    "muster.ordinary": ("muster.errors",),
    "muster.config": NOUNS,
    "muster.site": NOUNS,
    "muster.recipe": NOUNS,
    "muster.slurm": NOUNS,
    "muster.cluster": (*ERRORS_AND_PROCESS, "muster.argument_types"),
    "muster.image": NOUNS,
    "healthcheck": NOUNS,
    "resume": (
        *(*NOUNS, "healthcheck"),
        *("muster.image.reference", "muster.image.preflight", "muster.image.squash"),
    ),
    "lifecycle": (*NOUNS, "healthcheck"),
    "slurm": (*NOUNS, "lifecycle.cli", "lifecycle.description"),
    "muster.cli": (
        *(*ERRORS_AND_PROCESS, "muster.argument_types"),
        "muster.cluster",
        "muster.image",
        "healthcheck",
        "lifecycle",
        "resume",
        "slurm",
    ),
    "muster.__main__": ("muster.cli",),
}
# What hosts have besides the standard library, and who may use it.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "yaml": ("muster", "healthcheck", "lifecycle", "resume"),
    "matplotlib": ("resume.report",),
    "torch": ("healthcheck.deep.torch_worker",),  # runs in the Python of the site that has it
    "boto3": ("resume.s3",),
    "botocore": ("resume.s3",),
}
PACKAGES = ("muster", "healthcheck", "lifecycle", "resume", "slurm")


def module_name(path: Path) -> str:
    """muster/cluster/__init__.py -> muster.cluster."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, *, is_package: bool = False) -> set[str]:
    """Full names that a module imports, relative ones resolved; `from a import b` counts as a.b."""
    found: set[str] = set()
    here = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found.update(f"{start}.{alias.name}" for alias in node.names)
    return found


def within(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a name is one of the prefixes or below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def problems(module: str, imported: Iterable[str]) -> list[str]:
    """The imports of a module that the tables do not allow."""
    rule = max((name for name in MAY_IMPORT if within(module, [name])), key=len)
    if rule == "muster" and module != "muster":
        return [f"{module}: add it to the table"]
    wrong = []
    for name in sorted(imported):
        top = name.split(".")[0]
        if top in PACKAGES:
            # `from muster import x` names a module below; a bare `muster` names none.
            allowed = within(name, [rule, *MAY_IMPORT[rule]]) or name == "muster"
        else:
            allowed = top in STANDARD or within(module, THIRD_PARTY.get(top, ()))
        if not allowed:
            wrong.append(f"{module} imports {name}")
    return wrong


def read(path: Path) -> set[str]:
    """What the module in a file imports."""
    return imports(
        path.read_text(encoding="utf-8"), module_name(path), is_package=path.name == "__init__.py"
    )


FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    assert problems(module_name(path), read(path)) == []


def test_what_recipes_import_is_standard_library_only() -> None:
    """Inside a container there are the image's Python and, of ours, the folder `resume`."""
    waiting, seen = [ROOT / "resume" / "__init__.py"], set[Path]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for name in read(path):
            top = name.split(".")[0]
            assert top in STANDARD | {"resume"}, f"{module_name(path)} imports {name}"
            stem = ROOT / name.replace(".", "/")
            candidates = [stem.with_suffix(".py"), stem.parent.with_suffix(".py")]
            if top == "resume":
                waiting += [p for p in candidates if p.is_file() and p not in seen]


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/*/*.py")), ids=str)
def test_a_recipe_imports_only_resume_of_ours(path: Path) -> None:
    ours = {
        name for name in read(path) if within(name, ["muster", "healthcheck", "recipes", "tests"])
    }
    assert ours == set()


WRONG = [
    ("healthcheck.policy", "import resume.verdict", "resume.verdict"),
    ("healthcheck.policy", "def f():\n    from resume import verdict", "resume.verdict"),
    ("healthcheck.policy", "import muster.cli", "muster.cli"),
    ("muster.errors", "from muster import config", "muster.config"),
    ("muster.errors", "from . import config", "muster.config"),
    ("muster.cluster.world", "from muster.config import load", "muster.config.load"),
    ("resume.supervisor", "import matplotlib.pyplot as plt", "matplotlib.pyplot"),
    ("resume.supervisor", "import torch", "torch"),
    ("muster.config", "import numpy", "numpy"),
    ("muster.brand_new", "", "add it to the table"),
]


@pytest.mark.parametrize(("module", "source", "found"), WRONG)
def test_wrong_import_is_found(module: str, source: str, found: str) -> None:
    wrong = problems(module, imports(source, module))
    assert [line.endswith(found) for line in wrong] == [True]


RIGHT = [
    ("resume.supervisor", "from healthcheck.policy import decide\nfrom muster import slurm"),
    ("resume.report.picture", "import matplotlib.pyplot"),
    ("muster.cluster.world", "import os\nfrom muster.cluster import nodes\nfrom . import bmc"),
    ("muster.cli", "import resume.cli\nimport muster.cluster.cli"),
    ("muster.config", "import yaml"),
]


@pytest.mark.parametrize(("module", "source"), RIGHT)
def test_right_import_is_accepted(module: str, source: str) -> None:
    assert problems(module, imports(source, module)) == []
