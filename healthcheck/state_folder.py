"""Where a node's health checks keep what they remember of each other: on the node's own disk.

Root writes, everybody reads: a user's gate must not be able to change what root believes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

_DEFAULT = Path("/var/lib/muster")


def state_folder() -> Optional[Path]:
    """$MUSTER_STATE_DIR, else /var/lib/muster; made if possible. None: there is none."""
    named = os.environ.get("MUSTER_STATE_DIR")
    folder = Path(named) if named else _DEFAULT
    if named or os.geteuid() == 0:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            return None
    return folder if folder.is_dir() else None
