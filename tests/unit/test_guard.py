"""The guard as a real process: orders in, one line each out, and what it does when left alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resume import lease
from resume.checkpoint import digest_body, read_manifest
from resume.guard import gate_result
from resume.journal import Journal
from resume.lease import Lease
from tests.harness.checkpoints import SHARDS, publish
from tests.harness.programs import Scontrol, node_record, put

ROOT = Path(__file__).resolve().parents[2]
LONG = 30.0

SERVE = """
import sys
from pathlib import Path
from resume import guard
run_dir, check, lease_s = sys.argv[1:4]
arguments = guard.GuardArguments(
    run_dir=Path(run_dir), job="7", restart=0, token=1, lease_s=float(lease_s),
    nonce="the nonce", check_argv=[check],
)
sys.exit(guard.serve(arguments))
"""


@pytest.fixture(autouse=True)
def lost_host(scontrol: Scontrol) -> None:
    """Slurm has given the batch host up."""
    scontrol.nodes(node_record("n1", "DOWN*"), node_record("n2"))


class Guard:
    """A running guard; what it said is collected by a thread."""

    def __init__(self, run_dir: Path, check: Path, node: str, lease_s: float) -> None:
        environment = {**os.environ, "SLURMD_NODENAME": node, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(run_dir), str(check), str(lease_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment,
        )  # fmt: skip
        self.said: list[dict[str, Any]] = []
        self.lines: list[bytes] = []
        self.errors = b""
        self.threads = [threading.Thread(target=f) for f in (self._read, self._read_errors)]
        for thread in self.threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self.said.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def tell(self, *lines: bytes, **order: Any) -> None:
        assert self.process.stdin is not None
        for line in lines or (json.dumps(order).encode(),):
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self, *keys: str, **facts: Any) -> dict[str, Any]:
        """Wait for a line with these keys and values; lines before it are forgotten."""
        deadline = time.monotonic() + LONG
        while True:
            for number, line in enumerate(self.said):
                if all(k in line for k in keys) and facts.items() <= line.items():
                    del self.said[: number + 1]
                    return line
            assert time.monotonic() < deadline, (keys, facts, self.said, self.errors)
            assert self.process.poll() is None, (keys, facts, self.said, self.errors)
            time.sleep(0.01)

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self.threads:
            thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "nonce").write_text("the nonce")
    lease.take(folder, "7", 0, 0)
    return folder


@pytest.fixture
def check(tmp_path: Path) -> Path:
    """The health check; what it says is in a file, so are its arguments."""
    return put(
        tmp_path,
        "check",
        f'printf "%s\\n" "$@" >"{tmp_path}/asked"; cat "{tmp_path}/answer"; exit 3',
    )


@pytest.fixture
def guard(run_dir: Path, check: Path, scontrol: Scontrol) -> Iterator[Callable[..., Guard]]:
    started: list[Guard] = []

    def start(node: str = "n2", lease_s: float = 1000.0) -> Guard:
        started.append(Guard(run_dir, check, node, lease_s))
        return started[-1]

    yield start
    for one in started:
        one.end()


def rank(run_dir: Path, beats: Path, number: int, attempt: int = 1) -> subprocess.Popen[bytes]:
    """A process that looks like a rank of this run, and its first beat."""
    environment = {
        "PATH": os.environ["PATH"], "SLURM_STEP_ID": "4", "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_ATTEMPT": str(attempt),
    }  # fmt: skip
    process = subprocess.Popen(["sleep", "600"], env=environment)
    beat = {"pid": process.pid, "phase": "step", "step": 3}
    (beats / f"rank_{number}.json").write_text(json.dumps(beat))
    return process


@pytest.mark.parametrize(
    ("nonce", "shared"), [("the nonce", True), ("another", False), (None, False)]
)
def test_hello_says_whether_the_run_dir_is_shared(
    nonce: str | None, shared: bool, guard: Callable[..., Guard], run_dir: Path
) -> None:
    (run_dir / "nonce").unlink()
    if nonce is not None:
        (run_dir / "nonce").write_text(nonce)
    one = guard()
    hello = one.hear("hello")
    assert (hello["n"], hello["hello"], hello["shared"]) == ("n2", True, shared)
    assert hello["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    one.hear("alive")
    one.tell(do="bye")
    assert one.process.wait(LONG) == 0


def test_an_attempt_from_prepare_to_clean(
    guard: Callable[..., Guard], run_dir: Path, tmp_path: Path
) -> None:
    one, beats = guard(), tmp_path / "memory" / "7.1.1"
    beats.mkdir(parents=True)
    (beats / "rank_9.json").write_text('{"phase": "step"}')  # of an attempt before
    one.tell(do="prepare", attempt=1, beat_dir=str(beats), fresh=True)
    ready = one.hear("ready")
    assert ready["ready"] == 1
    assert 0 < ready["port"] < 65536
    assert list(beats.iterdir()) == []
    assert one.hear("r")["r"] == {}
    living = rank(run_dir, beats, 4)
    failed = rank(run_dir, beats, 5)
    try:
        (beats / "rank_5.exit").write_text("3\n")
        report = one.hear("r", "x", x={"5": 3})
        assert report["r"]["4"][:2] == ["step", 3]
        one.tell(do="signal", attempt=1, signal="SIGUSR2")
        assert living.wait(LONG) == -signal.SIGUSR2
        assert failed.poll() is None  # it has ended, its number may be somebody else's by now
        one.tell(do="kill", attempt=1)
        one.hear(clean=1)
        assert failed.wait(LONG) == -signal.SIGKILL
    finally:
        for process in (living, failed):
            process.kill()
            process.wait()
    one.tell(do="kill", attempt=2)
    one.hear(clean=2)


def test_new_guards_beside_living_ranks_keep_the_beats(
    guard: Callable[..., Guard], tmp_path: Path
) -> None:
    one, beats = guard(), tmp_path / "beats"
    beats.mkdir()
    (beats / "rank_0.json").write_text('{"phase": "step", "step": 8}')
    one.tell(do="prepare", attempt=1, beat_dir=str(beats), fresh=False)
    one.hear("ready")
    assert one.hear("r")["r"]["0"][:2] == ["step", 8]


def test_ready_is_who_sees_the_checkpoint(guard: Callable[..., Guard], tmp_path: Path) -> None:
    """A folder that this node sees late, then with an older manifest, then short, then whole."""
    checkpoint = publish(tmp_path / "checkpoints", 5)
    body, _ = read_manifest(checkpoint)
    assert body is not None
    hidden = checkpoint.rename(tmp_path / "hidden")
    one = guard()
    see = {"path": str(checkpoint), "sha256": digest_body(body), "patience_s": LONG}
    one.tell(do="prepare", attempt=1, beat_dir=str(tmp_path / "beats"), fresh=True, see=see)
    one.hear("r")  # alive and reporting, but not ready
    assert not any("ready" in line for line in one.said)
    hidden.rename(checkpoint)
    assert "why" not in one.hear("ready")
    older = publish(tmp_path / "older", 5, meta="another")
    for path, problem in ((older, "manifest.json is another one"), (checkpoint, "bytes instead")):
        with (checkpoint / next(iter(SHARDS))).open("a") as shard:
            shard.write("longer")
        see = {"path": str(path), "sha256": digest_body(body), "patience_s": 0}
        one.tell(do="prepare", attempt=2, beat_dir=str(tmp_path / "beats"), fresh=True, see=see)
        (why,) = one.hear("ready", "why")["why"]
        assert problem in why


def test_beat_folder_is_private(guard: Callable[..., Guard], tmp_path: Path) -> None:
    one, beats = guard(), tmp_path / "memory" / "beats"
    one.tell(do="prepare", attempt=1, beat_dir=str(beats), fresh=True)
    one.hear("ready")
    assert [path.stat().st_mode & 0o777 for path in (beats, beats.parent)] == [0o700] * 2


@pytest.mark.parametrize(
    ("answer", "fit", "why"),
    [
        ('{"finding": 1}\n{"fit": true, "unfit": []}', True, []),
        ('{"fit": false, "unfit": ["gpu: 7 of 8", "disk: full"]}', False,
         ["gpu: 7 of 8", "disk: full"]),
        ("no line of ours", False, ["check ended with 3"]),
        ('{"fit": false, "unfit": [5, {"a": 1}]}', False, ["5", "{'a': 1}"]),
        ('{"fit": false, "unfit": 5}', False, []),
        (json.dumps({"fit": False, "unfit": ["x" * 3000]}), False, ["x" * 100]),
        (json.dumps({"fit": False, "unfit": ["é" * 300] * 40}), False, None),  # more than a pipe
    ],
)  # fmt: skip
def test_result_of_a_health_check(
    answer: str, fit: bool, why: list[str] | None, guard: Callable[..., Guard], tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text(answer)
    one = guard()
    one.tell(do="check", time=1700000000.25)
    said = one.hear("gate")
    assert said["fit"] is fit
    assert why is None or said["why"] == why
    assert said["why"] or why == []
    assert max(map(len, one.lines)) <= 1001  # with the line feed; srun's own limit is 1024
    wanted = [
        "--when",
        "gate",
        "--shared",
        str(tmp_path / "a run"),
        "--reference-time",
        "1700000000.250",
    ]
    assert (tmp_path / "asked").read_text().splitlines() == wanted


def test_many_ranks_take_several_lines(guard: Callable[..., Guard], tmp_path: Path) -> None:
    one, beats = guard("a-node-with-a-long-name-001"), tmp_path / "beats"
    beats.mkdir()
    for number in range(1000, 1064):
        text = json.dumps({"phase": "x" * 500, "step": 10_000_000, "pid": 1})
        (beats / f"rank_{number}.json").write_text(text)
    one.tell(do="prepare", attempt=1, beat_dir=str(beats), fresh=False)
    one.hear("ready")
    told: set[str] = set()
    while len(told) < 64:
        told |= set(one.hear("r")["r"])
    assert told == {str(number) for number in range(1000, 1064)}
    assert max(map(len, one.lines)) <= 1001


GARBAGE = [
    b"", b"nothing", b"\xff\xfe", b"[]", b"3", b"null", b'"do"', b"{}", b'{"do": 1}',
    b'{"do": ["prepare"]}', b'{"do": "fly"}', b'{"do": "prepare"}', b'{"do": "kill"}',
    b'{"do": "prepare", "attempt": "x", "beat_dir": "/tmp", "fresh": false}',
    b'{"do": "prepare", "attempt": 1, "beat_dir": 7, "fresh": true}',
    b'{"do": "prepare", "attempt": 1, "beat_dir": "/proc/none/x", "fresh": true}',
    b'{"do": "prepare", "attempt": 1, "beat_dir": "/dev/null/x", "fresh": true}',
    b'{"do": "kill", "attempt": Infinity}', b'{"do": "kill", "attempt": null}',
    b'{"do": "check"}', b'{"do": "check", "time": "now"}',
    b'{"do": "signal", "signal": "SIGFLY"}', b'{"do": "signal"}', b"[" * 100_000,
]  # fmt: skip


def test_garbage_orders_do_not_end_a_guard(guard: Callable[..., Guard]) -> None:
    one = guard()
    one.tell(*GARBAGE)
    one.tell(do="kill", attempt=77)
    one.hear(clean=77)
    one.tell(do="bye")
    assert one.process.wait(LONG) == 0
    one.threads[1].join()
    assert b"muster guard: n2: order b'nothing'" in one.errors
    assert b"Traceback" not in one.errors


def test_an_order_in_pieces_is_one_order(guard: Callable[..., Guard]) -> None:
    one = guard()
    one.hear("hello")
    assert one.process.stdin is not None
    for piece in (b'{"do": "ki', b'll", "attem'):
        one.process.stdin.write(piece)
        one.process.stdin.flush()
        one.hear("alive")
    one.tell(b'pt": 5}')
    one.hear(clean=5)


# -- alone -----------------------------------------------------------------------------------

LEASE_S = 3.5  # about the shortest that makes sense: a living supervisor writes every second


def test_supervisor_that_vanished_is_rescued_once_by_two_guards(
    guard: Callable[..., Guard], run_dir: Path, tmp_path: Path, scontrol: Scontrol
) -> None:
    two = [guard(node, LEASE_S) for node in ("n1", "n2")]
    for one in two:
        one.hear("hello")
    beats = tmp_path / "beats"
    beats.mkdir()
    left = rank(run_dir, beats, 0)
    try:
        for one in two:
            one.hang_up()
        assert left.wait(LONG) == -signal.SIGKILL  # fenced before the job comes back
        assert [one.process.wait(LONG) for one in two] == [0, 0]
    finally:
        left.kill()
        left.wait()
    assert scontrol.requeued == ["7"]
    assert len(list((run_dir / "rescues").glob("*.json"))) == 1


def test_supervisor_that_fell_silent_is_rescued(
    guard: Callable[..., Guard], scontrol: Scontrol
) -> None:
    one = guard("n2", LEASE_S)  # the line stays open: its host froze or lost power
    assert one.process.wait(LONG) == 0
    assert scontrol.requeued == ["7"]


def test_a_guard_that_was_replaced_or_cut_off_leaves_the_job_alone(
    guard: Callable[..., Guard], run_dir: Path, tmp_path: Path, scontrol: Scontrol
) -> None:
    """Words fell silent, the lease moves on: the supervisor lives, only this node is cut off."""
    supervisor, over = Lease(run_dir, 1), threading.Event()

    def live() -> None:
        while not over.wait(0.05):
            supervisor.renew()

    alive = threading.Thread(target=live)
    alive.start()
    beats = tmp_path / "beats"
    beats.mkdir()
    left = rank(run_dir, beats, 0)
    try:
        replaced, cut_off = guard("n1", LEASE_S), guard("n2", LEASE_S)
        replaced.hear("hello")
        replaced.hang_up()
        assert left.wait(LONG) == -signal.SIGKILL  # the one that is cut off fences its ranks
        assert [replaced.process.poll(), cut_off.process.poll()] == [None, None]
    finally:
        over.set()
        alive.join()
        left.kill()
        left.wait()
    assert scontrol.requeued == []


def test_a_guard_outlives_a_newer_one_that_dies_at_once(
    guard: Callable[..., Guard], scontrol: Scontrol
) -> None:
    old = guard("n2", LEASE_S)
    old.hear("hello")
    newer = guard("n2", LEASE_S)
    newer.hear("hello")  # it has left its mark
    newer.process.kill()
    old.hang_up()
    assert old.process.wait(LONG) == 0
    assert scontrol.requeued == ["7"]


def test_sigterm_while_the_supervisor_speaks_is_passed_on(guard: Callable[..., Guard]) -> None:
    one = guard("n2")
    one.hear("hello")
    one.tell(do="alive")
    one.process.send_signal(signal.SIGTERM)
    one.hear("term")
    assert one.process.poll() is None


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
def test_an_end_on_purpose_is_respected(
    end: str, guard: Callable[..., Guard], run_dir: Path, scontrol: Scontrol
) -> None:
    if end == "cancelled":
        scontrol.job(JobState="CANCELLED")
    else:
        Journal(run_dir / "journal.jsonl", 1).append("stopped", why="x")
    one = guard("n2", LEASE_S)
    one.hear("hello")
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(LONG) == 0
    assert scontrol.requeued == []


@pytest.mark.parametrize(
    ("out", "rc", "wanted"),
    [
        ("", 0, (True, [])),
        ("", 1, (False, ["check ended with 1"])),
        ("text\n{}\n", 0, (True, [])),
        ('{"fit": true}\n{"other": 1}\nlast words\n', 1, (True, [])),
        ('{"fit": false, "unfit": ["a"]}\n', 0, (False, ["a"])),
        ('{"fit": true}\n{"fit": false, "unfit": ["b"]}\n', 0, (False, ["b"])),
        ("[" * 100_000, -9, (False, ["check ended with -9"])),
    ],
)
def test_last_word_of_a_check_counts(out: str, rc: int, wanted: tuple[bool, list[str]]) -> None:
    result = gate_result(out, rc)
    assert (result["fit"], result["why"]) == wanted
