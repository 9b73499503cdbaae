"""The watch's look at GPUs that Slurm has lost count of, see `gres_rules`.

Costs one call, and only while a job waits for resources.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from healthcheck import watch_state
from healthcheck.action_log import ActionLog
from healthcheck.gres_rules import (
    GresUse,
    RecountAction,
    Recounts,
    devices,
    next_recount,
    waits_for_resources,
)
from healthcheck.job_queue import Entry
from muster import slurm
from muster.errors import MusterError, StorageError, UnavailableError
from muster.process import run

_FIX = "see 'scontrol ping' and the controller's log"


@dataclass
class GresWatch:
    """What was seen and done, also on disk."""

    state: Path
    log: ActionLog
    dry_run: bool
    per_day: int
    _record: Recounts = field(init=False)
    _said: str = ""

    def __post_init__(self) -> None:
        self._record = Recounts(done_at=watch_state.load_recounts(self.state))

    def round(self, queue: Sequence[Entry]) -> None:
        """Look, and let Slurm count anew where that is sure to be needed.

        Raises:
            StorageError: the record cannot be written; then nothing is done either.
        """
        waiting = waits_for_resources(queue)
        if not waiting and not self._record.seen:
            return
        try:
            action = self._decide(waiting)
            if action.kind == "recount" and not self.dry_run:
                self._keep(action.record)  # before the act: a lost budget is no budget
                recount()
                self._say("recounted", f"scontrol reconfigure: {action.why}")
                return
            if action.kind == "recount":
                self._say_waits(f"dry run: would run scontrol reconfigure: {action.why}")
            elif action.kind == "wait":
                self._say_waits(action.why)
                self._keep(action.record)
            else:
                self._said = ""
                self._keep(action.record)
        except MusterError as error:
            if isinstance(error, StorageError):
                raise
            self._say_waits(str(error))

    def _decide(self, waiting: bool) -> RecountAction:
        nodes = gres_in_use() if waiting else {}
        now, budget = time.time(), self.per_day
        first = next_recount(waiting, nodes, self._record, per_day=budget, edited=(), now=now)
        if first.kind != "recount":
            return first
        edited = edited_since_start()
        return next_recount(waiting, nodes, self._record, per_day=budget, edited=edited, now=now)

    def _keep(self, record: Recounts) -> None:
        if record == self._record:
            return
        kept = record.done_at != self._record.done_at
        self._record = record
        if kept and not self.dry_run:
            watch_state.save_recounts(self.state, record.done_at)

    def _say_waits(self, why: str) -> None:
        """Why nothing happens, once."""
        if why != self._said:
            self._said = why
            self._say("waits", why)

    def _say(self, event: str, why: str) -> None:
        print(f"muster watch: {event}: {why}", flush=True)
        self.log.write(event, None, why)


def gres_in_use() -> dict[str, GresUse]:
    """What every node's record says of its devices.

    Raises:
        UnavailableError: Slurm does not answer.
    """
    done = run(["scontrol", "--details", "show", "node"], timeout_s=slurm.TIMEOUT_S)
    if not done.ok:
        raise UnavailableError("scontrol --details show node", done.reason, _FIX)
    blocks = [b for b in re.split(r"\n(?=NodeName=)", done.out) if b.startswith("NodeName=")]
    return {slurm.parse_node(block).name: _use(block) for block in blocks}


def _use(block: str) -> GresUse:
    used = devices(slurm.fields(block).get("GresUsed", ""))
    return GresUse(slurm.parse_node(block).states, used)


def edited_since_start() -> list[str]:
    """Slurm's own files on this host that are newer than slurmctld's start.

    Raises:
        UnavailableError: Slurm does not answer, or does not say when it started.
    """
    done = run(["scontrol", "show", "config"], timeout_s=slurm.TIMEOUT_S)
    settings = _settings(done.out)
    started = slurm.unix_time(settings.get("BOOT_TIME", ""))
    if not done.ok or started is None:
        raise UnavailableError("scontrol show config", done.reason or "no BOOT_TIME", _FIX)
    folder = Path(settings.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent
    new = [path for path in sorted(folder.rglob("*.conf")) if _changed_after(path, started)]
    return [str(path) for path in new]


def _settings(text: str) -> Mapping[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _changed_after(path: Path, started: float) -> bool:
    """Slurm tells its start in whole seconds; what was written in that second was there."""
    try:
        return int(path.stat().st_mtime) > started
    except OSError:
        return False  # a link to nothing: nothing that slurmctld could read


def recount() -> None:
    """Let slurmctld work out anew which devices are used.

    Raises:
        UnavailableError: it refused or does not answer.
    """
    done = run(["scontrol", "reconfigure"], timeout_s=slurm.TIMEOUT_S)
    if not done.ok:
        raise UnavailableError("scontrol reconfigure", done.reason, _FIX)
