"""One health check per node: the lock, and who does not keep it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from healthcheck.one_checker import one_checker

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys, time
sys.path[0] = sys.argv[1]
from pathlib import Path
from healthcheck.one_checker import one_checker
with one_checker(Path(sys.argv[2]), 0) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", HOLD, str(ROOT), str(folder)]
    return subprocess.Popen(argv, stdin=-1, stdout=-1, text=True)


def test_the_second_one_waits_and_gives_up(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        assert other.stdout
        assert other.stdout.readline() == "True\n"
        with one_checker(tmp_path, 0.2) as mine:
            assert not mine
        other.communicate("")
    with one_checker(tmp_path, 0) as mine:
        assert mine


def test_a_dead_holder_leaves_nothing(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        assert other.stdout
        assert other.stdout.readline() == "True\n"
        other.kill()
        other.communicate()
        with one_checker(tmp_path, 0) as mine:
            assert mine


def test_a_child_that_is_left_behind_does_not_keep_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with one_checker(tmp_path, 0) as mine:
        assert mine
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    with hold(tmp_path) as other:
        assert other.communicate("")[0] == "True\n"
    os.close(writer)
    os.close(reader)
    os.waitpid(child, 0)


def test_only_its_owner_can_open_it(tmp_path: Path) -> None:
    with one_checker(tmp_path, 0):
        assert (tmp_path / "checker.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("folder", [None, Path("/proc/nowhere")])
def test_without_a_folder_there_is_no_lock(folder: Path | None) -> None:
    with one_checker(folder, 0) as mine:
        assert mine
