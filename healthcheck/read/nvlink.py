"""NVLink as nvidia-smi shows it: which links are up, and how often they had errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from healthcheck import lazy
from healthcheck.facts import Facts
from healthcheck.read.gpu import ask
from muster.process import Completed

STATUS = ["nvidia-smi", "nvlink", "-s"]
ERRORS = ["nvidia-smi", "nvlink", "-e"]
_LIMIT_S = {"gate": 3.0, "prolog": 3.0}
_LIMIT_OTHER_S = 8.0
_GPU = lazy.pattern(r"GPU (\d{1,3}): .{0,200}")
_UP = lazy.pattern(r"\s+Link (\d{1,2}): (\d{1,4}(?:\.\d{1,4})?) GB/s\s*")
_DOWN = lazy.pattern(r"\s+Link (\d{1,2}): <inactive>\s*")
_COUNT = lazy.pattern(r"\s+Link (\d{1,2}): ([A-Za-z][\w /-]{0,40}?) Errors: (\d{1,18})\s*")
_ALL_DOWN = "all links are inActive"


@dataclass
class Links:
    """The links of one GPU.

    Attributes:
        index: the GPU's number.
        up: numbers of the active links.
        down: numbers of the inactive ones.
        all_down: it said that all are inactive, without naming them.
        errors: counts by (link, kind), kind being Replay, Recovery, CRC and the like.
    """

    index: str
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    all_down: bool = False
    errors: dict[tuple[int, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class NvLink:
    """All links by GPU; `answered`: False: it is not known whether there are any."""

    gpus: Mapping[str, Links]
    answered: bool


def parse_nvlink(text: str) -> dict[str, Links]:
    """Links by the number of their GPU; the last line counts only with its line end."""
    found: dict[str, Links] = {}
    links: Optional[Links] = None
    for line in text.split("\n")[:-1]:
        head = _GPU.fullmatch(line)
        if head:
            links = found.setdefault(head[1], Links(head[1]))
        elif links is not None:
            _line(line, links)
    return found


def _line(line: str, links: Links) -> None:
    up, down, count = _UP.fullmatch(line), _DOWN.fullmatch(line), _COUNT.fullmatch(line)
    if up:
        links.up.append(int(up[1]))
    elif down:
        links.down.append(int(down[1]))
    elif count:
        links.errors[int(count[1]), count[2]] = int(count[3])
    elif _ALL_DOWN in line:
        links.all_down = True


def status(facts: Facts) -> NvLink:
    """Which links are up."""
    return _read(ask(facts, STATUS, _LIMIT_S.get(facts.when, _LIMIT_OTHER_S)))


def errors(facts: Facts) -> NvLink:
    """Their counts of errors."""
    return _read(ask(facts, ERRORS, _LIMIT_OTHER_S))


def _read(done: Completed) -> NvLink:
    gpus = parse_nvlink(done.out)
    return NvLink(gpus, answered=done.ok and bool(gpus))
