"""Machines of a test on one network: each is a `PrivateRoot` that stays up, to run scripts in."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from tests.harness.private_root import PrivateRoot

SWITCH = """
set -euo pipefail
ip link add br0 type bridge
ip link set br0 up
echo ready
exec sleep infinity
"""
_LONGEST_S = 300
STAY = "trap 'exit 0' TERM; echo up; while :; do sleep infinity & wait $! || true; done"


class PrivateNetwork:
    """A switch in a network namespace of its own, and the machines that are connected to it."""

    def __init__(self) -> None:
        words = ("unshare", "-n", "bash", "-c", SWITCH)
        self._switch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ready\n"
        self._up: dict[str, tuple[subprocess.Popen[str], int]] = {}

    def __enter__(self) -> PrivateNetwork:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._up):
            self.down(name)
        self._switch.kill()
        self._switch.communicate()

    def up(self, machine: PrivateRoot) -> None:
        """Turn a machine on."""
        outer = machine.start(STAY, switch=self._switch.pid)
        assert outer.stdout is not None
        line = outer.stdout.readline()
        if line != "up\n":
            raise RuntimeError(f"{machine.name} does not start: {line}{outer.communicate()[0]}")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self._up[machine.name] = (outer, int(children[0]))

    def down(self, name: str) -> None:
        """Turn it off: everything on it dies at once; its disk stays."""
        outer, first = self._up.pop(name)
        os.kill(first, signal.SIGKILL)
        outer.communicate(timeout=60)

    def start(self, name: str, script: str, **env: str) -> subprocess.Popen[str]:
        """Begin a script of bash on a machine, as root."""
        enter = ("nsenter", "-t", str(self._up[name][1]), "-m", "-n", "-u", "-p", "-r", "-w")
        return subprocess.Popen(
            [*enter, "bash", "-euo", "pipefail", "-c", script],
            env={**PrivateRoot.environment(), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str, script: str, **env: str) -> tuple[int, str]:
        """The same to its end: (exit code, everything it printed)."""
        with self.start(name, script, **env) as process:
            try:
                out = process.communicate(timeout=_LONGEST_S)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, out
