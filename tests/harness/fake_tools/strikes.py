"""The shared folder of strikes: nothing is written against the GPUs of a fit node."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from healthcheck.finding import Action
from healthcheck.strikes import Strike, file_of
from tests.harness.fake_tools.node import FakeNode

SHARED = Path("/fsx/strikes")
DAY_S = 86400.0


def add(node: FakeNode) -> None:
    """The site file names the folder."""
    node.site = replace(node.site, strikes_path=SHARED)


def shared(name: str) -> str:
    """The file of a GPU in the shared folder."""
    return str(SHARED / file_of(name))


def text(days_ago: float, action: Action, now: float) -> str:
    """A file with one strike."""
    strike = Strike(now - days_ago * DAY_S, "aaaaaaaa", "n7", "xid.79", action)
    return json.dumps([asdict(strike)])
