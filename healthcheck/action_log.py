"""Every action on a node, and every refusal, as one JSON line with its time.

In $MUSTER_LOG_DIR, else /var/log/muster where cluster creation made that folder; when neither can
be written, on stderr, because an action without a trace is worse than an untidy log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Optional

_TAIL_BYTES = 1 << 16
_DEFAULT = Path("/var/log/muster")


def default_path() -> Optional[Path]:
    """The log file of this host; None: there is no folder for it."""
    named = os.environ.get("MUSTER_LOG_DIR")
    folder = Path(named) if named else _DEFAULT
    return folder / "actions.jsonl" if named or folder.is_dir() else None


class ActionLog:
    """Appends lines; `path` None: stderr."""

    def __init__(self, path: Optional[Path]) -> None:
        self._path = path

    def write(self, event: str, node: Optional[str], why: str, **more: Any) -> None:
        """One line; a single write, so that lines of several processes do not mix."""
        line = {"time": round(time.time(), 3), "event": event, "node": node, "why": why, **more}
        text = json.dumps(line) + "\n"
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # A FIFO that nobody reads must not hold us.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
                fd = os.open(self._path, flags, 0o644)
            except OSError:
                self._path = None
            else:
                try:
                    with os.fdopen(fd, "wb", buffering=0) as file:
                        file.write(text.encode())
                except OSError:
                    pass  # a full disk: the next line may fit again
                else:
                    return
        sys.stderr.write(text)

    def write_once(self, event: str, node: str, why: str, **more: Any) -> None:
        """Like `write`, unless the node's newest line says the same.

        A health check that refuses every few seconds for a day is one line.
        """
        last = self._newest(node)
        if last is None or (last.get("event"), last.get("why")) != (event, why):
            self.write(event, node, why, **more)

    def _newest(self, node: str) -> Optional[dict[str, Any]]:
        if self._path is None or not os.path.isfile(self._path):  # noqa: PTH113 - never raises
            return None
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return None
        for text in reversed(lines):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and line.get("node") == node:
                return line
        return None
