"""A program that cannot be killed: left behind, remembered, and not started a second time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from healthcheck import stuck
from healthcheck.env import Env

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a process in state D: the signal is sent, and nothing happens."""
    monkeypatch.setattr(os, "killpg", lambda *_: None)


def end(pid: int) -> None:
    os.kill(pid, 9)
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("unkillable")
def test_no_second_one_while_it_lives(tmp_path: Path) -> None:
    door = Env(Path("/"), 60, tmp_path)
    first = door.run(SLEEP, 0.1)
    assert (first.timed_out, first.rc) == (True, -9)
    assert first.left_pid is not None
    second = Env(Path("/"), 60, tmp_path).run(SLEEP, 30)
    assert (second.timed_out, second.left_pid) == (True, first.left_pid)
    assert f"process {first.left_pid} of an earlier check is stuck" in second.err
    end(first.left_pid)
    again = door.run([SLEEP[0], "-c", "print(1)"], 30)
    assert (again.rc, again.out) == (0, "1\n")


def test_who_dies_when_killed_is_not_remembered(tmp_path: Path) -> None:
    done = Env(Path("/"), 60, tmp_path).run(SLEEP, 0.1)
    assert (done.timed_out, done.left_pid) == (True, None)
    assert list(tmp_path.iterdir()) == []


def test_a_process_id_alone_is_not_enough(tmp_path: Path) -> None:
    """The kernel gives it to another process one day."""
    child = subprocess.Popen(SLEEP)
    stuck.mark(tmp_path, "nvidia-smi", child.pid)
    assert stuck.find(tmp_path, "nvidia-smi") == child.pid
    assert stuck.find(tmp_path, "dcgmi") is None
    (tmp_path / "stuck-nvidia-smi").write_text(f"{child.pid} 1\n")
    assert stuck.find(tmp_path, "nvidia-smi") is None
    child.kill()
    child.wait()


@pytest.mark.parametrize("text", ["", "1", "x y", "99999999 1", "1 2 3", "-1 0"])
def test_a_damaged_marker_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "stuck-nvidia-smi").write_text(text)
    assert stuck.find(tmp_path, "nvidia-smi") is None
    stuck.mark(None, "nvidia-smi", 1)
    assert stuck.find(None, "nvidia-smi") is None


def test_a_zombie_is_not_stuck() -> None:
    child = subprocess.Popen(["true"])
    until = time.monotonic() + 60
    while stuck.start_time(str(child.pid)) is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    child.wait()
