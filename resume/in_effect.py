"""What a person has changed, as far as it is in the weights: as the journal says. Pure.

The journal compares an attempt with the one before it, which may have been lost. Here the parts of
the effective history are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

Change = tuple[int, dict[str, list[Any]]]
"""(first training step, {setting: [old, new]})."""

KIND, BEGAN = "optim.kind", "optim.began_at"


def changes(
    entries: Iterable[dict[str, Any]], parts: Sequence[tuple[int, int]]
) -> tuple[Change, ...]:
    """Where settings of the effective history are others than those of the training step before.

    Args:
        entries: of journal.jsonl.
        parts: (attempt, its first training step in the weights), oldest first.
    """
    noted: list[tuple[int, dict[str, list[Any]]]] = sorted(
        (int(entry["attempt"]), entry["changes"])
        for entry in entries
        if entry["event"] == "changed" and isinstance(entry.get("changes"), dict)
    )
    names = sorted({name for _, pairs in noted for name in pairs})
    found = []
    for (before, _), (now, first) in zip(parts, parts[1:], strict=False):
        pairs = {name: [_value(noted, name, n) for n in (before, now)] for name in names}
        changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if changed:
            found.append((first, changed))
    return tuple(found)


def _value(noted: Sequence[tuple[int, dict[str, list[Any]]]], name: str, attempt: int) -> Any:
    """What an attempt had: what the last change up to it led to, or the first one after it left."""
    value: Any = None
    known = False
    for number, pairs in noted:
        if name in pairs and number <= attempt:
            value, known = pairs[name][1], True
        elif name in pairs and not known:
            return pairs[name][0]
    return value


def wrong_state(change: Change) -> Optional[int]:
    """Where the state of a changed optimizer is said to begin, if that is not where it changed.

    The state of one kind means nothing to another. Recipes that say nothing of it are believed.
    """
    first, pairs = change
    began = pairs.get(BEGAN, [None, None])[1]
    return began if KIND in pairs and began is not None and began != first - 1 else None
