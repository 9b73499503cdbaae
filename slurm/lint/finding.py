"""What a rule says about a script: where, what, and perhaps an edit that is safe to make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from slurm.lint.script import Script

ERROR = "error"
WARNING = "warning"
SEVERITIES = (ERROR, WARNING)
"""error: not what is written, or work is lost. warning: it costs once something fails."""


@dataclass(frozen=True)
class Edit:
    """Replace the characters [start, end) of the file by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Spot:
    """One place where a rule does not hold.

    Attributes:
        line: of the file, from 1.
        says: what is there, in a few words.
        edits: what `--fix` would do; empty: a person has to decide.
    """

    line: int
    says: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule of the catalogue; its name is how a finding and an `allow` comment call it."""

    name: str
    severity: str
    holds: str  # what is right, one sentence
    why: str  # what happens otherwise
    fix: str  # what to do about it
    find: Callable[[Script], Iterator[Spot]]


@dataclass(frozen=True)
class Finding:
    """A rule that does not hold at a place of a file."""

    path: str
    rule: Rule
    spot: Spot

    def __str__(self) -> str:
        told = " ".join(self.spot.says.split())  # a quoted word may have lines
        says = f"{self.path}:{self.spot.line}: {self.rule.severity}: {told}"
        return f"{says} [{self.rule.name}]. Fix: {self.rule.fix}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "path": self.path,
            "line": self.spot.line,
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "says": self.spot.says,
            "why": self.rule.why,
            "fix": self.rule.fix,
            "fixable": bool(self.spot.edits),
        }


_RULES: list[Rule] = []


def rule(
    severity: str, why: str, fix: str
) -> Callable[[Callable[[Script], Iterator[Spot]]], Callable[[Script], Iterator[Spot]]]:
    """Make a function a rule. Its name is the rule's, its docstring says what has to hold."""

    def register(
        function: Callable[[Script], Iterator[Spot]],
    ) -> Callable[[Script], Iterator[Spot]]:
        name = function.__name__.replace("_", "-")
        holds = " ".join((function.__doc__ or "").split())
        _RULES.append(Rule(name, severity, holds, " ".join(why.split()), fix, function))
        return function

    return register


def registered() -> list[Rule]:
    """Every rule whose module has been imported, in order of module and line."""
    return sorted(_RULES, key=lambda r: (r.find.__module__, r.find.__code__.co_firstlineno))


def first(*spots: Optional[Spot]) -> Iterator[Spot]:
    """The first that is one."""
    found = next((spot for spot in spots if spot), None)
    if found:
        yield found
