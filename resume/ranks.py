"""The ranks on one node, seen from its guard: their beats, their exit codes, their processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

_EXIT = re.compile(r"rank_(\d+)\.exit")
_BEAT = re.compile(r"rank_(\d+)\.json")
_PHASE_CHARS = 16  # all beats of a node have to fit into one line of the guard


@dataclass
class Beat:
    """Last sign of life of one rank."""

    phase: str
    step: Optional[int]
    pid: Optional[int]
    stamp: tuple[str, int]  # content and file time: a change of either is life
    seen_at: float  # this node's monotonic clock


@dataclass
class Ranks:
    """Ranks of one attempt on this node, read from their beat folder."""

    beat_dir: Path
    beats: dict[int, Beat] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)

    def poll(self) -> None:
        """Look for new beats and exit codes."""
        try:
            names = [path.name for path in self.beat_dir.iterdir()]
        except FileNotFoundError:  # logind's RemoveIPC empties /dev/shm when the user logs out
            with contextlib.suppress(OSError):
                self.beat_dir.mkdir(mode=0o700, parents=True)
            return
        except OSError:
            return
        for name in names:
            if match := _BEAT.fullmatch(name):
                self._note_beat(int(match[1]), self.beat_dir / name)
            elif match := _EXIT.fullmatch(name):
                self._note_exit(int(match[1]), self.beat_dir / name)

    def poll_exits(self) -> bool:
        """Look for new exit codes alone, which is cheap; whether there are any."""
        before = len(self.exits)
        for path in self.beat_dir.glob("rank_*.exit"):
            if match := _EXIT.fullmatch(path.name):
                self._note_exit(int(match[1]), path)
        return len(self.exits) > before

    def _note_beat(self, rank: int, path: Path) -> None:
        try:
            text, stamp = path.read_text(encoding="utf-8"), path.stat().st_mtime_ns
            value = json.loads(text)
            phase = str(value["phase"])[:_PHASE_CHARS]
            step, pid = _whole_number(value.get("step")), _whole_number(value.get("pid"))
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return  # being written; the next poll sees it
        known = self.beats.get(rank)
        if known is None or known.stamp != (text, stamp):
            self.beats[rank] = Beat(phase, step, pid, (text, stamp), time.monotonic())

    def _note_exit(self, rank: int, path: Path) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.exits[rank] = int(path.read_text(encoding="utf-8"))

    def report(self) -> dict[str, list[object]]:
        """{rank: [phase, step, seconds since the last sign of life]}, small enough for one line."""
        now = time.monotonic()
        return {
            str(rank): [beat.phase, beat.step, round(now - beat.seen_at, 1)]
            for rank, beat in sorted(self.beats.items())
        }

    def signal(self, number: int) -> list[int]:
        """Send a signal to each living rank itself, not to its children; returns the ranks."""
        reached = []
        for rank, beat in self.beats.items():
            # Above 1: zero and negative numbers would mean whole groups, or everything.
            if rank not in self.exits and beat.pid is not None and beat.pid > 1:
                with contextlib.suppress(ProcessLookupError, PermissionError, OverflowError):
                    os.kill(beat.pid, number)
                    reached.append(rank)
        return reached


def _whole_number(value: object) -> Optional[int]:
    """Recipes in any language write beats; what is no whole number counts as not said."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def find(run_dir: Path, attempt: Optional[int] = None) -> list[int]:
    """Process numbers of this node that belong to ranks of a run, found by their environment.

    Args:
        run_dir: the run; processes of other runs are never touched.
        attempt: only this attempt; None: any.
    """
    marks = [b"MUSTER_RUN_DIR=" + os.fsencode(run_dir)]
    if attempt is not None:
        marks.append(f"MUSTER_ATTEMPT={attempt}".encode())
    found, parents = [], {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            stat = (process / "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(process.name)] = int(stat[1])
            environment = (process / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue  # gone, or not ours
        # SLURM_STEP_ID tells a rank from the srun that launched it.
        is_rank = any(v.startswith((b"SLURM_STEP_ID=", b"SLURM_STEPID=")) for v in environment)
        of_attempt = any(v.startswith(b"MUSTER_ATTEMPT=") for v in environment)
        ours = is_rank and of_attempt and all(mark in environment for mark in marks)
        if ours and _is_alive(int(process.name)):
            found.append(int(process.name))
    return found + _descendants(found, parents)


def _descendants(of: list[int], parents: dict[int, int]) -> list[int]:
    """Living children of these processes and theirs: setproctitle and `env -i` hide the marks."""
    known, new = set(of), set(of)
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - known
        known |= new
    return [pid for pid in known - set(of) if pid != os.getpid() and _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in ("Z", "X")


def kill(run_dir: Path, attempt: Optional[int] = None) -> int:
    """SIGKILL the ranks of a run on this node; returns how many are left."""
    left = find(run_dir, attempt)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(left)
