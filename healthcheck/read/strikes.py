"""What was written down against the GPUs of this node, here and on other nodes: strikes.py."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from healthcheck.read.gpu import smi
from healthcheck.strikes import LOCAL, Strike, file_of, parse

if TYPE_CHECKING:
    from healthcheck.facts import Facts

_SHARED_S = 2.0


@dataclass(frozen=True)
class Record:
    """Of one GPU.

    Attributes:
        strikes: from both places.
        gap: why there may be more; None: that is all.
    """

    strikes: tuple[Strike, ...] = ()
    gap: Optional[str] = None


def records(facts: Facts) -> Mapping[str, Record]:
    """The record of every GPU that nvidia-smi shows, by its name. For `facts.once`."""
    names = [gpu.name for gpu in facts.once(smi).gpus]
    shared = _shared(facts, names)
    found = {}
    for name in names:
        here = _read(facts.env.remembered(f"{LOCAL}/{file_of(name)}") or "")
        there = shared.get(name, Record())
        found[name] = Record(here.strikes + there.strikes, there.gap or here.gap)
    return found


def _shared(facts: Facts, names: list[str]) -> Mapping[str, Record]:
    """What the shared folder says; empty: there is none."""
    folder = facts.site.strikes_path
    if folder is None or not names:
        return {}
    paths = {name: str(folder / file_of(name)) for name in names}
    answers = facts.env.read_notes(list(paths.values()), _SHARED_S)
    return {name: _answer(answers.get(path), str(folder)) for name, path in paths.items()}


def _answer(answer: Optional[Mapping[str, Any]], folder: str) -> Record:
    if answer is None:
        return Record(gap=f"{folder} hangs")
    if "error" in answer:
        return Record(gap=f"{folder}: {os.strerror(answer['error'])}")
    return _read(answer["text"]) if "text" in answer else Record(gap=f"{folder}: no answer")


def _read(text: str) -> Record:
    strikes = parse(text)
    return Record(gap="its file is damaged") if strikes is None else Record(tuple(strikes))
