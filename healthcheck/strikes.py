"""Strikes: which GPU broke when, by its serial number, which follows it into another node.

The first fault that a reboot cures is rebooted away; the second on the same GPU within a week means
that it does not, so the node is replaced. One strike per boot: a broken GPU is found again every
few minutes. A fault without a GPU to it counts against the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional, get_args

from healthcheck import folders
from healthcheck.finding import Action, Finding

REPEAT_S = 7 * 86400.0
CONDEMNED_S = 30 * 86400.0
MOST = 20
LOCAL = "strikes"  # folder in the node's state folder
_SHARED_S = 2.0


@dataclass(frozen=True)
class Strike:
    """One fault: Unix time, first 8 digits of the boot id, node, policy row and what was asked."""

    time: float
    boot: str
    node: str
    rule: str
    action: Action


def name_of(finding: Finding, node: str) -> str:
    """Whom a fault counts against: the GPU's serial or UUID, else the node."""
    if finding.gpu and re.fullmatch(r"\d{6,}|GPU-[0-9A-Fa-f-]{8,}", finding.gpu):
        return finding.gpu
    return f"node-{node}"  # a PCI address or an index is the same on every node


def escalate(finding: Finding, strikes: Iterable[Strike], boot: str, now: float) -> Finding:
    """The finding, asking for a replacement where a reboot was tried within a week."""
    if finding.action not in ("reset", "reboot"):
        return finding
    before = [s for s in strikes if s.boot != boot and now - s.time < REPEAT_S]
    if not before:
        return finding
    first = min(before, key=lambda strike: strike.time)
    detail = f"{finding.detail}, again after {first.rule} on {first.node}"
    return replace(finding, action="replace", detail=detail)


def added(strikes: Sequence[Strike], strike: Strike) -> list[Strike]:
    """The strikes with a new one; one per boot, the newest kept."""
    others = [s for s in strikes if (s.boot, s.node) != (strike.boot, strike.node)]
    return sorted([*others, strike], key=lambda s: s.time)[-MOST:]


def condemned(strikes: Iterable[Strike], now: float) -> Optional[Strike]:
    """The newest strike of the last 30 days for which a replacement was asked; None: none was."""
    grave = [s for s in strikes if s.action == "replace" and now - s.time < CONDEMNED_S]
    return max(grave, key=lambda strike: strike.time, default=None)


class StrikeBook:
    """One small file per GPU, on the node's own disk and, if the site has one, in a shared folder.

    The shared folder may hang, so it is touched by a child with a time limit, and what it says
    counts only if the folder's owner wrote it: a user must not be able to condemn a GPU.

    Args:
        local: folder on the node; None: nothing is remembered there.
        shared: folder that all nodes mount; None: strikes stay on their node.
        state: folder where a child is remembered that the shared folder holds.
    """

    def __init__(
        self, local: Optional[Path], shared: Optional[Path], state: Optional[Path] = None
    ) -> None:
        self._local, self._shared, self._state = local, shared, state

    def read(self, name: str) -> list[Strike]:
        """The strikes against a GPU, or a node, from both places."""
        texts = [_text(self._local / file_of(name))] if self._local else []
        if self._shared is not None and not name.startswith("node-"):
            path = self._shared / file_of(name)
            texts.append(self._outside(lambda: {"text": _text(path)}).get("text", ""))
        found: list[Strike] = []
        for strike in (strike for text in texts for strike in parse(text) or ()):
            found = added(found, strike)
        return found

    def write(self, name: str, strikes: Sequence[Strike]) -> None:
        """Replace the file in both places; one that cannot be written is left alone."""
        text = json.dumps([asdict(strike) for strike in strikes], indent=1)
        if self._local is not None:
            _put(self._local / file_of(name), text)
        if self._shared is not None and not name.startswith("node-"):
            path = self._shared / file_of(name)
            self._outside(lambda: _put(path, text))

    def _outside(self, work: folders.Question) -> dict[str, Any]:
        name = "strikes"
        return folders.ask({name: work}, _SHARED_S, self._state)[name] or {}


def file_of(name: str) -> str:
    """The file of a GPU, or a node."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80] + ".json"


def _text(path: Path) -> str:
    """What the folder's owner wrote; nothing if somebody else did."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.lstat().st_uid == path.parent.stat().st_uid:
            return path.read_text(encoding="utf-8")
    return ""


def _put(path: Path, text: str) -> dict[str, Any]:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    return {}


def parse(text: str) -> Optional[list[Strike]]:
    """The strikes in a file, those left out that are none; None: it is no such file."""
    try:
        values = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list):
        return None
    strikes = []
    for value in values:
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            strike = Strike(**value)
            if strike.action in get_args(Action) and float(strike.time) > 0:
                strikes.append(replace(strike, boot=str(strike.boot), node=str(strike.node)))
    return strikes
