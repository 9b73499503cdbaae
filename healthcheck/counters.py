"""What must be compared over time: counters that grow, and states that last.

An error counter says nothing by itself, it may be years old. One small file on the node's own disk
holds what earlier runs saw since this boot; it is written whole, at the end of a run, and a damaged
one is begun anew. Runs of ordinary users read it and cannot write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from healthcheck.facts import Facts

FILE = "counters.json"
LONGEST_S = 24 * 3600.0
"""How far back a comparison can reach."""

_MOST_POINTS = 200
_MOST_KEYS = 5000


@dataclass
class History:
    """What is in the file.

    Attributes:
        points: for each counter, (Unix time, value) where it changed, oldest first.
        since: for each state that lasts, when it was first seen, Unix seconds.
        dirty: something is new.
    """

    points: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    dirty: bool = False


def parse(text: Optional[str], boot_id: str) -> History:
    """The history of this boot; an empty one for another boot or a damaged file."""
    try:
        said = json.loads(text or "")
        if not isinstance(said, dict) or said["boot_id"] != boot_id:
            return History()
        points = {
            str(key): [(float(when), int(value)) for when, value in pairs]
            for key, pairs in said["points"].items()
        }
        since = {str(key): float(when) for key, when in said["since"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return History()
    return History({key: pairs for key, pairs in points.items() if pairs}, since)


def write(history: History, boot_id: str) -> str:
    """The text of the file."""
    points = dict(list(history.points.items())[-_MOST_KEYS:])
    return json.dumps({"boot_id": boot_id, "points": points, "since": history.since}) + "\n"


def add(points: list[tuple[float, int]], now: float, value: int) -> list[tuple[float, int]]:
    """The points with one more; those that no comparison needs are left out.

    A counter that became smaller was reset and starts again. A clock that went back forgets.
    """
    if points and (value < points[-1][1] or now < points[-1][0]):
        points = []
    if points and points[-1][1] == value:
        return points
    added = [*points, (now, value)]
    while len(added) > 1 and added[1][0] <= now - LONGEST_S:
        added = added[1:]
    return added if len(added) <= _MOST_POINTS else [added[0], *added[2:]]


def grown(points: list[tuple[float, int]], now: float, window_s: float) -> int:
    """How much a counter grew within the window, by its points (one at least)."""
    base = points[0][1]
    for when, value in points:
        if when <= now - window_s:
            base = value
    return points[-1][1] - base


def growth(facts: Facts, values: Mapping[str, int], window_s: float) -> dict[str, Optional[int]]:
    """How much each counter grew within the last `window_s` seconds; None: first seen just now.

    Args:
        facts: of this run.
        values: counters as they are now, by a name that is unique on the node.
        window_s: at most `LONGEST_S`.
    """
    history, now = facts.once(_history), facts.env.now()
    found: dict[str, Optional[int]] = {}
    for key, value in values.items():
        before = history.points.get(key)
        after = add(before or [], now, value)
        if after != before:
            history.points[key], history.dirty = after, True
        found[key] = grown(after, now, window_s) if before else None
    return found


def held_s(facts: Facts, name: str, *, on: bool) -> Optional[float]:
    """For how long a state lasts, by what the runs of this boot saw; None: it is off.

    It is 0 when it is seen for the first time, so one observation alone never lasts.
    """
    history, now = facts.once(_history), facts.env.now()
    if not on:
        history.dirty |= history.since.pop(name, None) is not None
        return None
    if not history.since.get(name, now + 1.0) <= now:  # not seen before, or the clock went back
        history.since[name], history.dirty = now, True
    return now - history.since[name]


def save(facts: Facts) -> None:
    """Keep what this run saw, if it saw anything new."""
    if facts.asked(_history) and facts.once(_history).dirty:
        facts.env.remember(FILE, write(facts.once(_history), _boot_id(facts)))


def _history(facts: Facts) -> History:
    return parse(facts.env.remembered(FILE), _boot_id(facts))


def _boot_id(facts: Facts) -> str:
    return facts.env.read("/proc/sys/kernel/random/boot_id") or ""
