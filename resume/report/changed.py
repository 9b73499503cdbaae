"""What a person has changed at a restart: settings, and the checkpoint to go on from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from resume.report.reading import Event, Records


@dataclass(frozen=True)
class Change:
    """One decision of a person."""

    time: float
    user: Optional[str]
    attempt: Optional[int]  # the first with these settings; None: a checkpoint was chosen
    step: int  # first training step with the settings, or that of the chosen checkpoint
    settings: Mapping[str, Any]  # {key: [old, new]}

    @property
    def text(self) -> str:
        """In words."""
        if self.attempt is None:
            return f"goes on from training step {self.step}"
        return ", ".join(f"{key} {_pair(value)}" for key, value in self.settings.items())

    def as_json(self) -> dict[str, Any]:
        """A row of summary.json."""
        return {
            "user": self.user,
            "attempt": self.attempt,
            "step": self.step,
            "settings": dict(self.settings),
        }


def _pair(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return f"{value[0]} → {value[1]}"
    return str(value)


def list_changes(records: Records) -> tuple[Change, ...]:
    """All changes, in order of time."""
    found = (_change(event) for event in records.events)
    return tuple(change for change in found if change is not None)


def _change(event: Event) -> Optional[Change]:
    who = event.text("user")
    if event.kind == "checkpoint_chosen":
        return Change(event.time, who, None, event.integer("to_step") or 0, {})
    settings = event.fields.get("changes")
    attempt = event.integer("attempt")
    if event.kind != "changed" or not isinstance(settings, dict) or attempt is None:
        return None
    return Change(event.time, who, attempt, event.integer("step") or 0, settings)
