"""The process outside a cluster that ends it and removes its files, whoever dies first.

It is started by `up`, detaches, starts the cluster's process 1 (`world.sh`) as its child and then
waits for one of: the caller of `up` vanished before the cluster was handed over; the owner ended;
somebody asked it to stop; process 1 ended. In each case it kills process 1, by which the kernel
ends everything inside, and removes the folder. Killed itself, it takes process 1 along
(`--pdeathsig`), and the next `up` finds the dead files.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

from muster.cluster import files
from muster.cluster.folder import Folder
from muster.cluster.shape import Shape

POLL_MS = 20
DEATH_TIMEOUT_S = 20.0
SCRIPT_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Keeper:
    """One cluster's life."""

    def __init__(self, order: dict[str, Any], caller: socket.socket) -> None:
        self.folder = Folder(Path(order["home"]), order["name"])
        self.order = order
        self.shape = Shape.from_json(order["shape"])
        self.owner = files.Owner(order["user"], os.getuid(), os.getgid())
        self.caller: Optional[socket.socket] = caller
        self.world: Optional[subprocess.Popen[bytes]] = None
        self.owner_fd = None if order["owner_pid"] is None else os.pidfd_open(order["owner_pid"])
        self.init: Optional[int] = None
        self.keep_logs = False
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.waiting: list[socket.socket] = []

    def run(self) -> None:
        """From the empty folder to no folder."""
        path = self.folder.path
        self._make(path)
        listener = self.listener
        listener.bind(str(self.folder.keeper_socket))
        self.folder.keeper_socket.chmod(0o600)
        listener.listen(16)
        self._write_state("starting")
        try:
            self._watch(listener, self._start())
        finally:
            self._write_state("stopping")
            self._end_world()
            self.folder.remove(keep_logs=self.keep_logs)

    def _make(self, path: Path) -> None:
        """Another cluster of this user may just be removing the empty home under our feet."""
        for _ in range(100):
            self.folder.make_home()
            with contextlib.suppress(FileNotFoundError):
                path.mkdir(mode=0o711)
                path.chmod(0o711)
                return

    def _start(self) -> subprocess.Popen[bytes]:
        self._write_files()
        unshare = ["unshare", "-m", "-n", "-u", "-p", "--fork", "--kill-child", "--mount-proc"]
        if self.owner.uid != 0:
            unshare[1:1] = ["-U", "-r"]
        script = str(self.folder.path / "lib/world.sh")
        with (self.folder.logs / "world.log").open("wb") as log:
            self.world = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *unshare, "bash", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": SCRIPT_PATH, "HOME": "/", "LC_ALL": "C"},
                start_new_session=True,
            )
        return self.world

    def _write_files(self) -> None:
        order, path = self.order, self.folder.path
        if self.shape.created:
            from muster.cluster.created.files import write  # noqa: PLC0415 - most clusters do without

            write(path, self.shape, order["machines"])
        else:
            files.write(path, self.shape, self.owner, order["python"], order["checkout"])

    def _watch(self, listener: socket.socket, world: subprocess.Popen[bytes]) -> None:
        """Return when the cluster has to end."""
        deadline = time.monotonic() + self.order["timeout_s"]
        poll = select.poll()
        for thing in (listener, self.owner_fd, self.caller, os.pidfd_open(world.pid)):
            if thing is not None:
                poll.register(thing, select.POLLIN)
        while True:
            events = {fd for fd, _ in poll.poll(POLL_MS if self.init is None else None)}
            if self.owner_fd in events:
                return
            if listener.fileno() in events and self._asked_to_stop(listener):
                return
            if world.poll() is not None:
                self._report({"error": f"its process 1 ended: {self._last_words()}"})
                return
            if self.caller is not None and self.caller.fileno() in events:
                poll.unregister(self.caller)
                if not self._handed_over():
                    return
            if self.init is None and not self._look_for_ready(world, deadline):
                return

    def _look_for_ready(self, world: subprocess.Popen[bytes], deadline: float) -> bool:
        """False: it took too long."""
        if (self.folder.path / "ready").exists():
            self.init = first_child(world.pid)
            self._write_state("up")
            self._report({"ready": True})
        elif time.monotonic() > deadline:
            self._report({"error": f"not ready in {self.order['timeout_s']:g} s"})
            return False
        return True

    def _asked_to_stop(self, listener: socket.socket) -> bool:
        """Whoever says something stays connected until we end, which is what he waits for."""
        link, _ = listener.accept()
        word = b""
        with contextlib.suppress(OSError):
            link.settimeout(2)
            word = link.recv(64)
        if word:
            self.waiting.append(link)
        else:
            link.close()
        self.keep_logs |= b"keep-logs" in word
        return word.startswith(b"stop")

    def _report(self, message: dict[str, Any]) -> None:
        if "error" in message and self.caller is not None:
            self.keep_logs = True
        if self.caller is not None:
            with contextlib.suppress(OSError):
                self.caller.sendall(json.dumps(message).encode() + b"\n")

    def _handed_over(self) -> bool:
        """The caller says "keep" when it has the cluster; an end of file means that it died."""
        if self.caller is None:
            return True
        with self.caller as caller:
            self.caller = None
            try:
                return caller.recv(64).startswith(b"keep")
            except OSError:
                return False

    def _write_state(self, state: str) -> None:
        with contextlib.suppress(OSError):
            self.folder.write_state(
                {"state": state, "shape": self.shape.to_json(), "init": self.init}
            )

    def _last_words(self) -> str:
        """Why process 1 ended: a daemon's "fatal:" says more than the line of our script."""
        logs = sorted(self.folder.logs.glob("slurm*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        for line in lines:
            if "fatal:" in line:
                return line
        words = (self.folder.logs / "world.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(words) if line.strip()), "without a word")

    def _end_world(self) -> None:
        """Kill process 1, not `unshare` above it: that one ends when everything inside is gone."""
        if self.world is None:
            return
        init = self.init or first_child(self.world.pid)
        with contextlib.suppress(ProcessLookupError):
            if init is not None:
                os.kill(init, signal.SIGKILL)
            else:
                self.world.kill()
        try:
            self.world.wait(DEATH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.world.kill()


def first_child(unshare_pid: int) -> Optional[int]:
    """The child of `unshare` that is process 1 of its namespace; None while there is none."""
    try:
        children = Path(f"/proc/{unshare_pid}/task/{unshare_pid}/children").read_text().split()
    except OSError:
        return None
    for child in children:
        pids = namespace_pids(int(child))
        if len(pids) > 1 and pids[-1] == 1:
            return int(child)
    return None


def namespace_pids(pid: int) -> list[int]:
    """A process's ids, from ours to the innermost namespace; empty when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    line = next((x for x in status.splitlines() if x.startswith("NSpid:")), "NSpid:")
    return [int(word) for word in line.split()[1:]]


def main() -> None:
    """Detach, so that the caller is not our parent and has nothing to wait for."""
    order, caller = json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    caller.set_inheritable(False)
    if os.fork() != 0:
        os._exit(0)
    os.chdir("/")
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))  # ends through the clean-up
    with contextlib.suppress(ProcessLookupError):  # the owner is gone already
        keeper = Keeper(order, caller)
        keeper.run()
        os._exit(0)  # with the connections of `keeper` still open: their end is our end


if __name__ == "__main__":
    main()
