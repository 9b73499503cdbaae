"""The frame of a check that looks at every GPU: who is asked, and what no answer means.

A check passes only if every GPU that should be there answered; a field that a driver or a GPU does
not have is skipped, for that field alone; a value that nobody understands is UNKNOWN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Optional

from healthcheck.facts import Facts
from healthcheck.finding import Result, Status
from healthcheck.read.gpu import Gpu, expected, smi, without_gpus

NO_GPUS = Result("SKIP", "has no GPUs by its profile")
NO_ANSWER = Result("UNKNOWN", "got no answer from nvidia-smi")

Look = Callable[..., Iterator[Result]]
"""look(gpu, value, value, ...): what is wrong with this GPU; nothing: it is fit."""


class NotUnderstoodError(Exception):
    """A value that is not of the form that is documented."""


def each_gpu(facts: Facts, fields: tuple[str, ...], look: Look, fit: str) -> Iterator[Result]:
    """What `look` finds at each GPU; `fit` is the detail if that is nothing."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    gpus = facts.once(smi).gpus
    if not gpus:
        yield NO_ANSWER
        return
    looked, found = 0, False
    for gpu in gpus:
        values = [gpu.get(field) for field in fields]
        if None in values:
            continue
        looked += 1
        for result in _results(look, gpu, values):
            found = True
            yield result
    if not found:
        yield _verdict(facts, looked, len(gpus), fields[0], fit)


def _results(look: Look, gpu: Gpu, values: list[Optional[str]]) -> Iterator[Result]:
    try:
        yield from look(gpu, *values)
    except NotUnderstoodError as error:
        yield on(gpu, "UNKNOWN", f"reports {error}")


def _verdict(facts: Facts, looked: int, shown: int, field: str, fit: str) -> Result:
    wanted = facts.once(expected)
    if wanted is not None and shown < wanted:
        return Result("UNKNOWN", f"got an answer from {shown} of {wanted} GPUs only")
    if not looked:
        return Result("SKIP", f"has GPUs or a driver without {field}")
    return Result("PASS", fit)


def on(gpu: Gpu, status: Status, detail: str, rule: Optional[str] = None) -> Result:
    """A result about one GPU."""
    return Result(status, f"{detail} on GPU {gpu.index}", rule=rule, gpu=gpu.name)


def number(value: str, field: str) -> int:
    """A count, decimal or 0x...

    Raises:
        NotUnderstoodError: it is none.
    """
    if re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value):
        return int(value, 16)
    raise NotUnderstoodError(f"{field} as {value}")


def flag(value: str, field: str) -> bool:
    """Yes, Enabled or 1; No, Disabled or 0.

    Raises:
        NotUnderstoodError: it is neither.
    """
    if value in ("Yes", "Enabled", "1"):
        return True
    if value in ("No", "Disabled", "0"):
        return False
    raise NotUnderstoodError(f"{field} as {value}")
