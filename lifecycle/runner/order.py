"""The order of steps: each after those that it needs, otherwise by name, so always the same."""

from __future__ import annotations

from collections.abc import Sequence

from lifecycle.runner.step import Step
from muster.errors import ConfigError, UsageError, did_you_mean


def in_order(steps: Sequence[Step]) -> list[Step]:
    """All steps in the order in which they run.

    Raises:
        ConfigError: a need that is no step, or steps that need each other.
    """
    by_name = {step.name: step for step in steps}
    for step in steps:
        for need in step.needs:
            if need not in by_name:
                hint = did_you_mean(need, by_name)
                what = f"there is no step '{need}'.{hint}"
                raise ConfigError(f"{step.path}: needs", what, f"use some of {', '.join(by_name)}")
    done: dict[str, Step] = {}
    waiting = dict(sorted(by_name.items()))
    while waiting:
        ready = [step for step in waiting.values() if done.keys() >= set(step.needs)]
        if not ready:
            names = ", ".join(waiting)
            raise ConfigError("steps", f"need each other: {names}", "take one of the needs away")
        done[ready[0].name] = waiting.pop(ready[0].name)
    return list(done.values())


def choose(steps: Sequence[Step], since: str | None = None, only: Sequence[str] = ()) -> list[Step]:
    """Of ordered steps those from `since` on, or only the named ones.

    Raises:
        UsageError: there is no such step on this node.
    """
    names = [step.name for step in steps]
    for name in [*only, *([since] if since else [])]:
        if name not in names:
            hint = did_you_mean(name, names)
            what = f"this node has no step '{name}'.{hint}"
            raise UsageError("create", what, f"use one of {', '.join(names)}")
    if since is not None:
        steps = steps[names.index(since) :]
    return [step for step in steps if not only or step.name in only]
