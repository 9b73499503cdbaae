"""`muster guard`: one small process on every node of a job, the supervisor's eyes and hands.

It runs as a job step beside the ranks and talks through srun's own standard input and output, so
there is no port, no secret and no daemon. It reports beats and exit codes, runs the health gate,
signals and kills ranks. When the supervisor falls silent (its host lost power, or it was killed),
the guards fence the ranks and requeue the job, because nobody else would: a job with --no-kill
stays RUNNING for ever after its batch host died.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Optional

from muster.process import memory_file
from resume import memory, ranks, rescue
from resume.lease import LeaseWatch
from resume.local_keeper import LocalKeeper
from resume.private_folder import own_folder
from resume.rundir import beat_dir, forget_beats
from resume.sight import RESUME, Sight, Wanted

TICK_S = 0.2
_KILL_S = 0.02  # until what was killed is looked for again
REPORT_S = 0.5
_CHECK_S = 60.0  # the gate takes a second; one that hangs must not block the next one
_LINE_BYTES = 1000  # srun keeps lines of several nodes apart only up to 1024 bytes
_RANKS_A_LINE = 12
_REASON_CHARS = 100  # six bytes each at worst
_SPOKEN_TO_S = 2.5  # the supervisor speaks every second


@dataclass(frozen=True)
class GuardArguments:
    """What the supervisor tells a guard at its start."""

    run_dir: Path
    job: str
    restart: int
    token: int
    lease_s: float
    nonce: str
    check_argv: Sequence[str]  # how to run `muster check` on this host
    kill_wait_s: float = 30.0  # between Slurm's SIGTERM and its SIGKILL
    place: int = 0  # of this node in the guards' step


@dataclass
class Guard:
    """State of one guard."""

    arguments: GuardArguments
    node: str
    heard_at: float = field(default_factory=time.monotonic)
    reported_at: float = 0.0
    present: Optional[ranks.Ranks] = None
    keeper: LocalKeeper = field(default_factory=LocalKeeper)
    looking: Optional[tuple[int, Sight]] = None  # attempt that is ready once this is over
    check: Optional[subprocess.Popen[bytes]] = None
    check_out: BinaryIO = field(default_factory=io.BytesIO)
    check_started_at: float = 0.0
    killing: Optional[int] = None
    kills_before: int = 0  # for want of memory, when the attempt was prepared
    newer_since: Optional[float] = None  # a newer guard has been here for so long
    buffer: bytes = b""
    eof: bool = False
    leaving: bool = False
    over: bool = False  # no other guard follows
    terminated: bool = False
    told_term: bool = False

    def say(self, **facts: Any) -> None:
        """One line to the supervisor; too long a text is cut, never the line."""
        line = json.dumps({"n": self.node, **facts})
        if len(line) > _LINE_BYTES and isinstance(facts.get("why"), list):
            facts["why"] = [text[:_REASON_CHARS] for text in facts["why"]]
            line = json.dumps({"n": self.node, **facts})
        while len(line) > _LINE_BYTES and isinstance(facts.get("why"), list) and facts["why"]:
            facts["why"] = facts["why"][:-1]
            line = json.dumps({"n": self.node, **facts})
        try:
            os.write(1, line.encode() + b"\n")
        except OSError:
            self.eof = True

    def obey(self, order: dict[str, Any]) -> None:
        """Do what one line from the supervisor says."""
        what = order.get("do")
        if what == "prepare":
            attempt, beats = int(order["attempt"]), Path(order["beat_dir"])
            self._prepare(attempt, beats, fresh=order["fresh"], see=order.get("see"))
        elif what == "check":
            self._start_check(order)
        elif what == "signal" and self.present is not None:
            self.present.signal(signal.Signals[str(order["signal"])])
        elif what == "keep":
            self.keeper.order = order
        elif what == "kill":
            self.killing = int(order["attempt"])
        elif what == "bye":
            self.leaving, self.over = True, bool(order.get("over"))

    def _prepare(
        self, attempt: int, beats: Path, *, fresh: bool, see: Optional[dict[str, Any]] = None
    ) -> None:
        """A private folder in memory for the beats; ready is who sees the checkpoint, if any."""
        own_folder(beats.parent)
        own_folder(beats)
        for old in beats.iterdir() if fresh else ():
            old.unlink(missing_ok=True)
        if fresh or self.present is None:
            self.kills_before = memory.kills() or 0
        self.present = ranks.Ranks(beats)
        self.looking = None
        if see is None:
            self._say_ready(attempt, None)
        else:
            self.keeper.folder = Path(see["local"]) if see.get("local") else None
            wanted = Wanted(
                Path(see["path"]), see["sha256"], float(see["patience_s"]), self.keeper.folder
            )
            self.looking = (attempt, Sight(wanted))
            self._look_again()

    def _look_again(self) -> None:
        if self.looking is not None and self.looking[1].over:
            attempt, sight = self.looking
            self.looking = None
            self._say_ready(attempt, sight.problem, sight.copy)

    def _say_ready(self, attempt: int, unseen: Optional[str], copy: Optional[Path] = None) -> None:
        """With a free port for the rendezvous, and what of the checkpoint is not seen here."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            more: dict[str, Any] = {} if unseen is None else {"why": [unseen]}
            if copy is not None and self.present is not None:
                with contextlib.suppress(OSError):  # then from the shared file system
                    (self.present.beat_dir / RESUME).write_text(str(copy), encoding="utf-8")
                    more["local"] = True
            self.say(ready=attempt, port=probe.getsockname()[1], **more)

    def _start_check(self, order: dict[str, Any]) -> None:
        if self.check is None:
            argv = [*self.arguments.check_argv, "--when", str(order.get("when", "gate"))]
            argv += ["--shared", str(self.arguments.run_dir)]
            argv += ["--reference-time", f"{float(order['time']):.3f}"]
            if "since" in order:
                argv += ["--since", f"{float(order['since']):.3f}"]
            self.check_started_at = time.monotonic()
            self.check_out = memory_file()  # not a pipe: a check with much to say would fill it
            self.check = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=self.check_out, stderr=subprocess.DEVNULL
            )

    def work(self) -> None:
        """Whatever is due: collect a check, go on killing, report."""
        if self.check is not None and self.check.poll() is None:
            if time.monotonic() - self.check_started_at > _CHECK_S:
                self.check.kill()  # its answer says then how it ended
        elif self.check is not None:
            with self.check_out as out:
                out.seek(0)
                text = out.read().decode(errors="replace")
            for finding in told_findings(text):
                self.say(f=finding)
            self.say(**gate_result(text, self.check.returncode))
            self.check = None
        self._look_again()
        self.keeper.work(self.present.report() if self.present is not None else ())
        if self.killing is not None:
            left = ranks.kill(self.arguments.run_dir, self.killing)
            if left == 0:
                self.say(clean=self.killing)
                self.killing = None
        ended = self.present is not None and self.present.poll_exits()
        if ended or time.monotonic() - self.reported_at >= REPORT_S:
            self.reported_at = time.monotonic()
            if self.present is None:
                self.say(alive=True)
            else:
                self.present.poll()
                self._report(self.present)

    def _report(self, present: ranks.Ranks) -> None:
        """Beats and exit codes, in as many lines as it takes; all but the last say `more`."""
        beats, exits = present.report(), present.exits
        names = sorted({*beats, *map(str, exits)}, key=int)
        parts = [names[i : i + _RANKS_A_LINE] for i in range(0, len(names), _RANKS_A_LINE)] or [[]]
        killed = max(0, (memory.kills() or 0) - self.kills_before) if exits else 0
        for number, part in enumerate(parts, 1):
            facts: dict[str, Any] = {"r": {name: beats[name] for name in part if name in beats}}
            facts["x"] = {name: exits[int(name)] for name in part if int(name) in exits}
            facts.update({"more": True} if number < len(parts) else {})
            facts.update({"o": killed} if killed else {})
            self.say(**facts)

    def listen(self) -> None:
        """Wait one tick for orders."""
        if self.eof:
            time.sleep(TICK_S)
            return
        readable, _, _ = select.select([0], [], [], TICK_S if self.killing is None else _KILL_S)
        if not readable:
            return
        block = os.read(0, 65536)
        if not block:
            self.eof = True
            return
        self.heard_at = time.monotonic()
        *lines, self.buffer = (self.buffer + block).split(b"\n")
        for line in lines:
            try:
                self.obey(json.loads(line))
            except Exception as error:  # noqa: BLE001, PERF203  (no order may end a guard)
                print(f"muster guard: {self.node}: order {line!r}: {error}", file=sys.stderr)


def gate_result(out: str, rc: int) -> dict[str, Any]:
    """The last line of `muster check --json` as {"fit", "why"}; no such line: the probe failed."""
    for line in reversed(out.splitlines()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "fit" in value:
            return {"gate": True, "fit": bool(value["fit"]), "why": _texts(value.get("unfit"))}
    return {"gate": True, "fit": rc == 0, "why": [] if rc == 0 else [f"check ended with {rc}"]}


def told_findings(out: str) -> list[dict[str, Any]]:
    """What `muster check --json` found wrong, each small enough for one line."""
    found = []
    for line in out.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.get("status") in ("FAIL", "WARN"):
            value.pop("fix", None)
            value["detail"] = str(value.get("detail", ""))[:_REASON_CHARS]
            found.append(value)
    return found


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def serve(arguments: GuardArguments) -> int:
    """Run until the supervisor says bye, or is lost and the job is requeued."""
    guard = Guard(arguments, os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    watch = LeaseWatch(arguments.run_dir)

    def on_term(_number: int, _frame: Optional[FrameType]) -> None:
        guard.terminated = True

    signal.signal(signal.SIGTERM, on_term)
    forget_beats(arguments.job, range(arguments.token))  # of supervisors that are history
    mark = _mark(arguments, guard.node)
    guard.say(hello=True, shared=_sees_nonce(arguments), boot=boot_id())
    while not guard.leaving:
        guard.listen()
        guard.work()
        if _replaced(mark, guard):
            return 0
        outcome = _supervisor_lost(guard, watch)
        if outcome is not None:
            return outcome
    guard.keeper.end(complete=guard.over and (arguments.run_dir / "DONE").exists())
    if guard.over:
        forget_beats(arguments.job, [arguments.token])
    return 0


def _mark(arguments: GuardArguments, node: str) -> Optional[Path]:
    """A file of this node that names its newest guard: when srun is killed the old one lives on."""
    folder = beat_dir(arguments.job, arguments.token, 0).parent
    mark = folder / f"{arguments.job}.{arguments.token}.{node}.guard"
    try:
        own_folder(folder)
        mark.write_text(str(os.getpid()), encoding="utf-8")
    except OSError:
        return None
    return mark


def _replaced(mark: Optional[Path], guard: Guard) -> bool:
    """Whether a newer guard has taken over here, while nobody speaks to us any more.

    It must have lived for a lease: one whose srun dies while it starts would leave nobody here.
    """
    if mark is None or time.monotonic() - guard.heard_at < 1.0 or not _newer_lives(mark):
        guard.newer_since = None
        return False
    guard.newer_since = guard.newer_since or time.monotonic()
    return time.monotonic() - guard.newer_since > guard.arguments.lease_s


def _newer_lives(mark: Path) -> bool:
    try:
        newest = int(mark.read_text(encoding="utf-8"))
        os.kill(newest, 0)
    except (OSError, ValueError):
        return False
    return newest != os.getpid()


def _supervisor_lost(guard: Guard, watch: LeaseWatch) -> Optional[int]:
    """Act when the supervisor is gone; None while it is there.

    Two channels have to fall silent, its words and its lease, before the job is requeued. Silent
    words alone mean that this node is cut off: its ranks are fenced, the job goes on elsewhere.
    """
    arguments, still_s = guard.arguments, watch.still_s()
    silent_s = time.monotonic() - guard.heard_at
    if guard.terminated and not guard.eof and silent_s < _SPOKEN_TO_S:
        if not guard.told_term:
            guard.say(term=True)  # a job that will be preempted; its supervisor still decides
        guard.told_term = True
        return None
    if guard.terminated or (guard.eof and still_s > arguments.lease_s / 2):
        hurry = arguments.kill_wait_s / 2 if guard.terminated else None
        return rescue.rescue(arguments, guard.node, watch, "supervisor_lost", hurry)
    if guard.eof:
        return 0 if silent_s > 4 * arguments.lease_s else None  # replaced by another guard
    if silent_s <= arguments.lease_s:
        return None
    if still_s > arguments.lease_s:
        return rescue.rescue(arguments, guard.node, watch, "batch_host_lost")
    ranks.kill(arguments.run_dir)
    return 0 if silent_s > 4 * arguments.lease_s else None


def _sees_nonce(arguments: GuardArguments) -> bool:
    """Whether RUN_DIR is the folder that the supervisor writes to."""
    try:
        return (arguments.run_dir / "nonce").read_text(encoding="utf-8") == arguments.nonce
    except OSError:
        return False


def boot_id() -> str:
    """Of this node; it changes with every boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
