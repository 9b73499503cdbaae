"""Who owns a run, and whether its supervisor is alive: two small files in RUN_DIR.

owner.json holds the fencing token: it only grows, so ranks and supervisors of an older owner find
out that they are history before they publish anything. `lease` is a counter that the living
supervisor advances; readers look for change and never compare clocks of two nodes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from muster.errors import TemporaryError
from resume.durable import read_json, write_json


def read_owner(run_dir: Path) -> Optional[dict[str, Any]]:
    """The present owner {"token", "job", "restart", "host"}; None before the first one."""
    owner = read_json(run_dir / "owner.json")
    ours = isinstance(owner, dict) and isinstance(owner.get("token"), int) and "job" in owner
    return owner if ours else None


def take(run_dir: Path, job: str, restart: int, lease_s: float) -> int:
    """Become the owner; returns the new token.

    A restart of the same job takes over at once, because Slurm has ended the old one or it is cut
    off and fenced by the token. Another job, or a second start in the same one, must first see the
    lease stand still.

    Raises:
        TemporaryError: another job's supervisor is alive on this run, or starts at this moment.
    """
    owner = read_owner(run_dir)
    if owner is not None and (str(owner["job"]) != job or owner.get("restart") == restart):
        before = _lease_text(run_dir)
        time.sleep(lease_s if before else 0)
        if before != _lease_text(run_dir):
            raise TemporaryError(
                str(run_dir),
                f"job {owner['job']} on {owner['host']} is training here",
                f"wait for it or 'scancel {owner['job']}', or give another --run-dir",
            )
    token = int(owner["token"]) + 1 if owner else 1
    while not _claim(run_dir, token):  # whoever was faster is alive, or died before it wrote
        time.sleep(lease_s)
        if read_owner(run_dir) != owner:
            raise TemporaryError(
                str(run_dir),
                "another job starts here now",
                "wait for it, or give another --run-dir",
            )
        token += 1
    facts = {"token": token, "job": job, "restart": restart, "host": os.uname().nodename}
    write_json(run_dir / "owner.json", facts)
    return token


def launch(run_dir: Path, token: int, attempt: int) -> None:
    """Fence the ranks of earlier attempts too: one that could not be killed must not publish."""
    owner = read_owner(run_dir)
    if owner is not None and int(owner["token"]) == token:
        write_json(run_dir / "owner.json", {**owner, "attempt": attempt})


def _claim(run_dir: Path, token: int) -> bool:
    """Whether this token is ours alone: two jobs that start together must not share one."""
    folder = run_dir / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(folder / str(token), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def owns(run_dir: Path, token: int) -> bool:
    """Whether no newer owner exists."""
    owner = read_owner(run_dir)
    return owner is None or int(owner["token"]) <= token


def _lease_text(run_dir: Path) -> str:
    try:
        return (run_dir / "lease").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass
class Lease:
    """The supervisor's side: advance at most once a second."""

    run_dir: Path
    token: int
    count: int = 0
    written_at: float = field(default=0.0)

    def renew(self) -> None:
        """Advance the counter; a file system that hiccups is no reason to die here."""
        if time.monotonic() - self.written_at < 1.0:
            return
        self.count += 1
        temporary = self.run_dir / ".lease.tmp"
        try:
            temporary.write_text(f"{self.token} {self.count}\n", encoding="utf-8")
            temporary.replace(self.run_dir / "lease")
        except OSError:
            return
        self.written_at = time.monotonic()


@dataclass
class LeaseWatch:
    """A guard's side: for how long the lease has stood still, by this node's clock."""

    run_dir: Path
    text: str = ""
    changed_at: float = field(default_factory=time.monotonic)

    def still_s(self) -> float:
        """Seconds since the lease was last seen to change."""
        text = _lease_text(self.run_dir)
        if text != self.text:
            self.text, self.changed_at = text, time.monotonic()
        return time.monotonic() - self.changed_at
