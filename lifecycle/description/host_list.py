"""Slurm's short form of node names: `n[001-003,7],head` is n001, n002, n003, n7 and head.

Written out here and not by `scontrol show hostnames`, because a description is checked on machines
that have no Slurm yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster.errors import ConfigError

MAX_NODES = 65536
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_ITEM = re.compile(r"([^\[\],\s]*)(?:\[([0-9,-]+)\]([^\[\],\s]*))?(?:,|\Z)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(text: str, where: str) -> list[str]:
    """All names of a host list, in its order.

    Args:
        text: at most one pair of brackets in each name.
        where: for the error line.

    Raises:
        ConfigError: not a host list, an empty or endless range, or no host name.
    """
    names: list[str] = []
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None or item.end() == at:
            raise ConfigError(where, f"'{text}' is no host list", "write n[001-100] or n1,n2")
        before, ranges, after = item.groups()
        ends = [""] if ranges is None else list(_numbers(ranges, text, where))
        names += [f"{before}{end}{after or ''}" for end in ends]
        if len(names) > MAX_NODES:
            raise ConfigError(where, f"'{text}' is more than {MAX_NODES} nodes", "shorten it")
        at = item.end()
    for name in names or [text]:
        if not _NAME.fullmatch(name) or len(name) > 63:
            fix = "use letters, digits, - and ., at most 63"
            raise ConfigError(where, f"'{name}' is no host name", fix)
    return names


def _numbers(ranges: str, text: str, where: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        first, last = match.groups() if match else ("1", "0")
        last = last or first
        if int(last) < int(first) or int(last) - int(first) >= MAX_NODES:
            raise ConfigError(where, f"'{text}': [{part}] is no range", "write [001-100]")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
