"""A line of slurm.conf, with the reason why it is there."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Setting:
    """One `Key=Value`.

    Attributes:
        key: as slurm.conf spells it.
        value: its value.
        why: what it is good for, and what it costs; sentences.
        default: what Slurm takes without it; None: there is no default, or it says nothing.
    """

    key: str
    value: str
    why: str
    default: Optional[str] = None

    def lines(self) -> list[str]:
        """The reason as comments, then the line."""
        told = "" if self.default is None else f" (Slurm's own: {self.default})"
        return [*comment(f"{self.why}{told}"), f"{self.key}={self.value}"]


@dataclass(frozen=True)
class Section:
    """Settings that belong together."""

    title: str
    settings: list[Setting]


def comment(text: str) -> list[str]:
    """A sentence as lines of comment."""
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), 98)]
