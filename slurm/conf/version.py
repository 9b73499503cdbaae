"""What differs between releases of Slurm, from 22.05 on, as far as our lines are concerned."""

from __future__ import annotations

import re

from muster.errors import ConfigError

OLDEST = (22, 5)
BLOCKS = (23, 11)
"""topology/block."""
REQUEUE_DELAY = (25, 11)
"""SchedulerParameters=requeue_delay, and expedited requeue. Before, cred_expire is the delay."""


def parse(text: str) -> tuple[int, int]:
    """(23, 11) of "23.11" or "slurm-wlm 23.11.4".

    Raises:
        ConfigError: it is no release of Slurm, or one that is too old.
    """
    match = re.search(r"(?<![\d.])(\d{2})\.(\d{1,2})(?![\d])", text)
    if not match:
        what = f"'{text}' is no release of Slurm"
        raise ConfigError("slurm: version", what, "write it as 'slurmctld -V' does: 23.11")
    found = (int(match[1]), int(match[2]))
    if found < OLDEST:
        what = f"{match[0]} is older than 22.05"
        raise ConfigError("slurm: version", what, "update Slurm: its makers no longer mend it")
    return found
