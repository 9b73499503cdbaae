"""Find the checks: every function with `@check(...)` in a module of healthcheck/checks.

A new check is a new file or function there; nothing lists it anywhere else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from healthcheck import counters
from healthcheck.finding import Finding, Result
from healthcheck.policy import judge

if TYPE_CHECKING:
    from healthcheck.facts import Facts

MODES = ("gate", "periodic", "return", "prolog", "epilog", "suspect", "deep", "pair")
"""Before a training attempt; as HealthCheckProgram; before a node returns; around a job; when a job
has failed and somebody asks which node it was; burn-in, on a node without jobs, alone and with
another one."""

ALL_BUT_PAIR = tuple(mode for mode in MODES if mode != "pair")
"""Where a check belongs that does not say otherwise: two nodes together look at their link only."""

LIMIT_S = {
    "gate": 10.0,
    "prolog": 10.0,
    "epilog": 30.0,
    "periodic": 45.0,
    "return": 45.0,
    "suspect": 45.0,
    "deep": 3 * 3600.0,
    "pair": 900.0,
}
"""Longest whole run; Slurm kills a HealthCheckProgram after 60 s."""

Function = Callable[["Facts"], Iterator[Result]]


@dataclass(frozen=True)
class Check:
    """A check: its name, the modes it belongs to, and a pure function over the facts."""

    name: str
    when: frozenset[str]
    function: Function


_FOUND: dict[str, Check] = {}


def check(name: str, when: Iterable[str] = ALL_BUT_PAIR) -> Callable[[Function], Function]:
    """Mark a function as the check `name`, run in the modes `when`."""

    def register(function: Function) -> Function:
        _FOUND[name] = Check(name, frozenset(when), function)
        return function

    return register


def discover() -> list[Check]:
    """All checks, in order of module and line."""
    package = importlib.import_module("healthcheck.checks")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        importlib.import_module(f"healthcheck.checks.{module.name}")
    return list(_FOUND.values())


def run_checks(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """Findings of all checks of this mode; a check that breaks or comes too late is UNKNOWN."""
    findings: list[Finding] = []
    for one in checks:
        if facts.when not in one.when:
            continue
        if facts.env.left_s() <= 0:
            results = [Result("UNKNOWN", f"was not asked for {one.name}: the run's time was over")]
        else:
            results = _results(one, facts)
        findings += [judge(one.name, result, facts.node) for result in results]
    counters.save(facts)
    return findings


def _results(one: Check, facts: Facts) -> list[Result]:
    results: list[Result] = []
    try:
        results.extend(one.function(facts))
    except Exception as error:  # noqa: BLE001  (a fault of ours must never blame the node)
        what = f"{type(error).__name__}: {error}"
        results.append(Result("UNKNOWN", f"could not be checked for {one.name}: {what}"))
    return results
