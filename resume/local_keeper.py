"""The guard's hand on its node's own disk: starts the process that copies a checkpoint there."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from resume.fleet import own_argv


@dataclass
class LocalKeeper:
    """At most one copy at a time; of orders that wait only the newest counts."""

    folder: Optional[Path] = None  # of the run, on this node's disk; None: it wants no copies
    order: Optional[dict[str, Any]] = None
    _process: Optional[subprocess.Popen[bytes]] = None

    def work(self, ranks: Iterable[str]) -> None:
        """Start what is due: to copy what these ranks have written."""
        numbers = ",".join(sorted(ranks))
        if self.order is None or not numbers:
            return
        if self._process is not None and self._process.poll() is None:
            return
        order, self.order = self.order, None
        self.folder = Path(order["folder"])
        argv = [*own_argv(), "keep-local", str(order["path"]), "--sha256", str(order["sha256"])]
        argv += ["--ranks", numbers, "--folder", str(self.folder)]
        argv += ["--reserve-bytes", str(int(order["reserve_bytes"]))]
        with contextlib.suppress(OSError):  # no memory for it: a copy is not worth a guard
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def end(self, *, complete: bool) -> None:
        """Nothing lives on; copies of a run that is complete are of no use."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self.folder is not None and complete:
            shutil.rmtree(self.folder, ignore_errors=True)
