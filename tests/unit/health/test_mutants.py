"""Break every check at every comparison, number and status: the rows notice nearly all of it.

What survives is mostly equal code (a limit that no row stands on exactly, a text that is cut).
Slow: a minute or two; the rows alone are run, other tests find more.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from functools import cache
from pathlib import Path

import pytest

from healthcheck import checks, registry
from tests.harness.fake_tools.judge import of, problem
from tests.harness.mutants import broken, mutants

ROOT = Path(__file__).resolve().parents[3]
MODULES = [
    *(f"{checks.__name__}.{module.name}" for module in pkgutil.iter_modules(checks.__path__)),
    "healthcheck.each_gpu",
]
KILLED = 0.75


@cache
def imports(name: str) -> frozenset[str]:
    """Our modules that a module uses, itself and theirs among them."""
    path = ROOT / (name.replace(".", "/") + ".py")
    if not path.exists():
        return frozenset()
    found = {name}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("healthcheck"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(*(imports(one) for one in [str(node.module), *names] if one != name))
    return frozenset(found)


def notices(checks_: list[str]) -> bool:
    """Whether a row of these checks goes red; what breaks altogether is noticed too."""
    try:
        return any(problem(row) for check in checks_ for row in of(check))
    except Exception:  # noqa: BLE001  (whatever the mutant does)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_nearly_every_broken_line_turns_a_row_red(name: str) -> None:
    module = importlib.import_module(name)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    concerned = [
        one.name for one in registry.discover() if name in imports(one.function.__module__)
    ]
    alive, count = [], 0
    for mutant in mutants(source):
        count += 1
        with broken(module, mutant):
            if not notices(concerned):
                line = source.split("\n")[mutant.line - 1].strip()
                alive.append(f"{name}:{mutant.line}: {mutant.what}: {line}")
    assert len(alive) <= (1 - KILLED) * count, "\n".join(alive)


def test_a_mutant_is_another_program_and_gone_afterwards() -> None:
    module = importlib.import_module("healthcheck.checks.neuron")
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    found = next(m for m in mutants(source) if m.what == "FAIL is PASS")
    assert not notices(["neuron_count"])
    with broken(module, found):
        assert notices(["neuron_count"])
    assert not notices(["neuron_count"])
