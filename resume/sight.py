"""Whether this node sees the checkpoint that its ranks are about to load.

A network disk shows on one node what another one wrote only after a while: NFS remembers folders
for up to a minute (acdirmax). A rank that looks too early finds no checkpoint, or an older one of
that name, and fails for what is nobody's fault. So the guard looks first, in a thread of its own:
it must not fall silent because a disk is slow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from resume import checkpoint, local_copies

PATIENCE_S = 90.0
"""Half as much again as what NFS remembers by default."""
RESUME = "resume"
"""In the beat folder of an attempt: the copy that ranks of this node load instead."""
_LOOK_S = 0.2
_COPY_S = 60.0  # to read a copy; whoever needs longer is no quicker than the shared file system
_AT_ONCE_S = 0.1


@dataclass(frozen=True)
class Wanted:
    """A checkpoint as the supervisor has verified it."""

    path: Path
    sha256: str  # of its manifest's body
    patience_s: float = PATIENCE_S
    local: Optional[Path] = None  # where this node may have a copy

    @property
    def longest_s(self) -> float:
        """That it may take."""
        return self.patience_s + (_COPY_S if self.local is not None else 0.0)

    def as_order(self) -> dict[str, object]:
        """For a line to the guards."""
        local = str(self.local) if self.local is not None else None
        return {**vars(self), "path": str(self.path), "local": local}


class Sight:
    """Looks for a checkpoint until it is seen whole, or patience is over."""

    def __init__(self, wanted: Wanted) -> None:
        self.problem: Optional[str] = "nobody has looked yet"  # None: it is seen
        self.copy: Optional[Path] = None  # on this node's own disk, read and compared
        self._thread = threading.Thread(target=self._look, args=(wanted,), daemon=True)
        self._thread.start()
        self._thread.join(_AT_ONCE_S)  # mostly that is enough, and a restart is not held up

    @property
    def over(self) -> bool:
        """Whether `problem` is the last word."""
        return not self._thread.is_alive()

    def _look(self, wanted: Wanted) -> None:
        deadline = time.monotonic() + wanted.patience_s
        while True:
            self.problem = unseen(wanted)
            if self.problem is None or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        if self.problem is None and wanted.local is not None:
            source = local_copies.Source(wanted.path, wanted.sha256)
            with contextlib.suppress(OSError):
                self.copy = local_copies.usable(source, wanted.local, time.monotonic() + _COPY_S)


def unseen(wanted: Wanted) -> Optional[str]:
    """What of a checkpoint this node does not see, by names and sizes; None: all is there."""
    try:
        body, problems = checkpoint.read_manifest(wanted.path)
        if body is not None and checkpoint.digest_body(body) != wanted.sha256:
            return f"{checkpoint.MANIFEST} is another one"
        problems = problems or checkpoint.verify(wanted.path, contents=False)
    except OSError as error:
        return str(error)
    return problems[0] if problems else None
