"""The supervisor is killed and its job comes back, also while there is no guard yet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resume import lease, rescue
from resume.journal import Journal
from tests.harness.programs import Scontrol, node_record

LONG_S = 30
# It says its process number, then waits for signals; `muster run` with nothing in it.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from resume import minder, rescue
from resume.guard import GuardArguments
rescue._RETRY_S = 1.0
rescue._PATIENCE_S = 20.0
print("begun", flush=True)
minder.keep_watch(GuardArguments(Path(sys.argv[1]), "7", 0, 1, 15.0, "n", ()), "n1")
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""


class Run:
    """A supervisor and its minder."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.minder = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(run_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "begun"
        self.supervisor = int(self.line())

    def line(self) -> str:
        assert self.minder.stdout is not None
        return self.minder.stdout.readline().strip()

    def end(self) -> int:
        return self.minder.wait(LONG_S)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.fixture
def run(tmp_path: Path, scontrol: Scontrol) -> Iterator[Run]:
    scontrol.nodes(node_record("n1"), node_record("n2"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    lease.take(run_dir, "7", 0, 0)
    Journal(run_dir / "journal.jsonl", 1).append("supervisor_started", job="7")
    one = Run(run_dir)
    yield one
    for pid in (one.supervisor, one.minder.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    one.minder.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_supervisor_brings_its_job_back(number: int, run: Run, scontrol: Scontrol) -> None:
    os.kill(run.supervisor, number)
    assert run.end() == 128 + number
    assert scontrol.requeued == ["7"]
    told = json.loads(rescue.rescue_file(run.run_dir, "7", 0).read_text())
    assert (told["by"], told["cause"]) == ("n1", "supervisor_lost")
    assert run.minder.stderr is not None
    assert f"was killed by signal {int(number)}" in run.minder.stderr.read()


LEFT_ALONE: dict[str, Callable[[Run, Scontrol], object]] = {
    "it may not come back": lambda _, slurm: slurm.job(Requeue=0),
    "a person cancelled it": lambda _, slurm: slurm.job(JobState="CANCELLED"),
    "it was requeued already": lambda _, slurm: slurm.job(Restarts=1),
    "it is done": lambda run, _: Journal(run.run_dir / "journal.jsonl", 1).append("done"),
    "somebody else owns the run": lambda run, _: lease.take(run.run_dir, "7", 1, 0),
}


@pytest.mark.parametrize("why", LEFT_ALONE)
def test_what_is_over_is_left_alone(why: str, run: Run, scontrol: Scontrol) -> None:
    LEFT_ALONE[why](run, scontrol)
    os.kill(run.supervisor, signal.SIGKILL)
    assert run.end() == 137
    assert scontrol.requeued == []


def test_signals_reach_the_supervisor_and_its_exit_code_is_the_end(
    run: Run, scontrol: Scontrol
) -> None:
    run.minder.send_signal(signal.SIGUSR1)
    assert run.line() == "usr1"
    run.minder.send_signal(signal.SIGTERM)
    assert run.end() == 3
    assert scontrol.requeued == []


def test_a_supervisor_that_a_signal_asked_to_end_is_no_loss(run: Run, scontrol: Scontrol) -> None:
    os.kill(run.supervisor, signal.SIGHUP)
    assert run.end() == 128 + signal.SIGHUP
    assert scontrol.requeued == []


def test_the_supervisor_ends_with_its_minder(run: Run, scontrol: Scontrol) -> None:
    run.minder.kill()
    run.end()
    deadline = time.monotonic() + LONG_S
    while alive(run.supervisor) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(run.supervisor)
    assert scontrol.requeued == []


def test_slurm_that_ends_the_job_ends_the_minder_too(run: Run, scontrol: Scontrol) -> None:
    """The job is RUNNING until the lease has stood still, so there is time to be told."""
    (run.run_dir / "lease").write_text("1 5\n")
    os.kill(run.supervisor, signal.SIGKILL)
    assert run.minder.stderr is not None
    assert "was killed by signal 9" in run.minder.stderr.readline()
    run.minder.send_signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM
    assert scontrol.requeued == []
