"""Ranks that start with the libraries already imported: seconds less for each.

A server imports torch and what else a recipe uses, and forks itself for each rank, which then runs
the recipe's program from its first line: its own files are read anew, and options, environment,
signals, output and exit code are those of a process that was started.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import runpy
import signal
import subprocess
from multiprocessing import forkserver
from pathlib import Path

import pytest

RANK = str(Path(__file__).with_name("rank.py"))
FORKS = multiprocessing.get_context("forkserver")


def imports(folder: Path) -> list[str]:
    """What a recipe's files import at their start, but for the recipe's own modules and ours."""
    own = {path.stem for path in folder.glob("*.py")} | {"resume"}
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return sorted(name for name in found if name.partition(".")[0] not in own)


def prepare(folders: list[Path]) -> None:
    """Start the server, if it does not run yet, with what these recipes import."""
    FORKS.set_forkserver_preload(sorted({name for folder in folders for name in imports(folder)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # is read when torch is imported
        forkserver.ensure_running()


class Process:
    """A rank, with what `subprocess.Popen` has of it."""

    def __init__(
        self, command: list[str], *, cwd: Path, env: dict[str, str], out: Path, err: Path
    ) -> None:
        """Start `command`, a Python file and its words."""
        facts = {"FACTS": (command, str(cwd), env, str(out), str(err))}
        # By its path: beside NeMo some package installs a `tests`, which would be found as ours.
        self._process = FORKS.Process(target=runpy.run_path, args=(RANK, facts, "rank"))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """As `os.kill`, unless it has ended."""
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
