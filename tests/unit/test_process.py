"""External commands: their end is a result, their time limit holds, and nobody outlives it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from muster.process import run

LONG = 60.0


@pytest.mark.parametrize(
    ("script", "rc", "out", "err"),
    [
        ("echo hello", 0, "hello\n", ""),
        ("echo bad >&2; exit 3", 3, "", "bad\n"),
        ("cat", 0, "", ""),
        ("kill -9 $$", -9, "", ""),
        ("printf 'a\\377b'", 0, "a\ufffdb", ""),
        ("(sleep 600 & ) ; echo left", 0, "left\n", ""),  # a grandchild keeps the output open
    ],
)
def test_end_is_a_result(script: str, rc: int, out: str, err: str) -> None:
    done = run(["bash", "-c", script], LONG)
    assert (done.rc, done.out, done.err, done.timed_out, done.ok) == (rc, out, err, False, rc == 0)


def test_input_environment_and_large_output() -> None:
    assert run(["cat"], LONG, input="é\n").out == "é\n"
    assert run(["/bin/sh", "-c", "echo $A$HOME"], LONG, env={"A": "1"}).out == "1\n"
    done = run([sys.executable, "-c", "print('x' * 3_000_000)"], LONG)
    assert len(done.out) == 3_000_001


@pytest.mark.parametrize(
    ("argv", "rc", "err"),
    [
        (["no-such-program"], 127, "no-such-program: command not found"),
        (["/tmp"], 126, "/tmp: Permission denied"),
    ],
)
def test_what_cannot_start(argv: list[str], rc: int, err: str) -> None:
    done = run(argv, LONG)
    assert (done.rc, done.err, done.reason, done.ok) == (rc, err, err, False)


def test_time_limit_kills_the_children_too_and_keeps_the_output(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! >{tmp_path}/child; echo so far; trap '' TERM; wait"
    done = run(["bash", "-c", script], 0.5)
    assert (done.timed_out, done.ok, done.out, done.rc) == (True, False, "so far\n", -9)
    assert done.reason == "no answer within its time limit"
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}")
    deadline = time.monotonic() + LONG
    while child.exists() and ") Z " not in (child / "stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 4", "exit status 4"),
        ("printf 'a\\nlast\\n\\n' >&2; exit 1", "last"),
    ],
)
def test_reason_is_one_line(script: str, reason: str) -> None:
    assert run(["bash", "-c", script], LONG).reason == reason


def test_command_has_its_own_session() -> None:
    sid = int(run([sys.executable, "-c", "import os; print(os.getsid(0))"], LONG).out)
    assert sid != os.getsid(0)
