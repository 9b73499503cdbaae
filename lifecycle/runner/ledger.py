"""What happened to each step of this node: one JSON file on the local disk, one copy shared.

The ledger decides nothing but this: a step that was cut off in the middle is applied again, even
if its check finds nothing to do. Whoever loses the file loses nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from muster import process
from muster.errors import StorageError

_COPY_TIMEOUT_S = 20.0


class Ledger:
    """ledger.json in a folder of this node's own."""

    def __init__(self, folder: Path, node: str) -> None:
        self.path = folder / "ledger.json"
        self.steps: dict[str, dict[str, Any]] = {}
        self.node = node
        with contextlib.suppress(OSError, ValueError, AttributeError):
            steps = json.loads(self.path.read_text(encoding="utf-8")).get("steps")
            if isinstance(steps, dict):
                self.steps = {k: v for k, v in steps.items() if isinstance(v, dict)}

    def was_cut_off(self, step: str) -> bool:
        """Whether the last apply of this step began and did not end."""
        return self.steps.get(step, {}).get("state") == "applying"

    def note(self, step: str, state: str, **facts: Any) -> None:
        """Write down a step's new state, durably.

        Raises:
            StorageError: the disk is full, or fails.
        """
        self.steps[step] = {"state": state, "time": round(time.time(), 3), **facts}
        text = json.dumps({"node": self.node, "steps": self.steps}, indent=1) + "\n"
        part = self.path.with_suffix(".tmp")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            what = f"cannot be written: {error.strerror}"
            raise StorageError(str(self.path), what, "make room on that disk, run again") from None

    def copy_to(self, shared: Path) -> str | None:
        """Copy it to a shared folder as NODE.json; the reason why not, or None.

        A separate process does it: a shared disk that hangs must not hold us.
        """
        script = (
            'mkdir -p -- "$2" && cp -- "$1" "$2/.$3.$$" && mv -- "$2/.$3.$$" "$2/$3.json" || '
            '{ rm -f -- "$2/.$3.$$"; exit 1; }'
        )
        words = ["sh", "-c", script, "copy", str(self.path), str(shared), self.node]
        done = process.run(words, _COPY_TIMEOUT_S)
        return None if done.ok else done.reason
