"""Where a cluster keeps its files, who may touch them, and how to talk to the process behind it.

The path is short because a UNIX socket's path may have 107 bytes and Slurm appends to it. It lies
under /tmp where everybody may write, so a folder that is not plainly ours is refused. Whether a
cluster lives is asked from its keeper over a socket: process ids in a file go stale, and after a
reboot they belong to somebody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from muster.errors import CreateError, TemporaryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
MAX_PATH_BYTES = 60
"""107 less '/local/slurmd/n64_4294967294.4294967294', the longest socket that Slurm makes below."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
_HOME_TRIES = 100


@dataclass(frozen=True)
class Folder:
    """The folder of one cluster; it need not exist."""

    home: Path
    name: str

    @classmethod
    def named(cls, name: str) -> Folder:
        """The folder for this name, below $MUSTER_CLUSTER_HOME or /tmp/muster-<uid>.

        Raises:
            UsageError: the name or the path cannot be used.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--name {name!r}",
                "not a name of 1 to 20 lower-case letters, digits and '-'",
                "--name local",
            )
        home = os.environ.get("MUSTER_CLUSTER_HOME")
        base = Path(home).absolute() if home else Path(f"/tmp/muster-{os.getuid()}")  # noqa: S108
        folder = cls(base, name)
        if len(os.fsencode(folder.path)) > MAX_PATH_BYTES or re.search(r"\s", str(base)):
            raise UsageError(
                str(folder.path),
                f"longer than {MAX_PATH_BYTES} bytes, or with a space in it",
                "set MUSTER_CLUSTER_HOME to a short path, such as /tmp/muster",
            )
        return folder

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.home / self.name

    @property
    def logs(self) -> Path:
        """What is kept when somebody needs to look."""
        return self.path / "log"

    @property
    def keeper_socket(self) -> Path:
        """Where the keeper listens."""
        return self.path / "keeper"

    def state(self) -> dict[str, Any]:
        """What the keeper wrote last, or nothing."""
        try:
            data = json.loads((self.path / "cluster.json").read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state as a whole."""
        draft = self.path / "cluster.json.tmp"
        draft.write_text(json.dumps(state) + "\n")
        draft.replace(self.path / "cluster.json")

    def call_keeper(self) -> Optional[socket.socket]:
        """A connection to the living keeper; None when there is none."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(str(self.keeper_socket))
        except OSError:
            link.close()
            return None
        return link

    def make_home(self) -> None:
        """Create or accept the home of all clusters of this user.

        Raises:
            CreateError: it is not a folder that only we can write.
        """
        for _ in range(_HOME_TRIES):  # the last cluster of all may be taking it away just now
            with contextlib.suppress(FileNotFoundError):
                self._make_home()
                return
        raise _not_ours(self.home, "is made and taken away again and again")

    def _make_home(self) -> None:
        try:
            self.home.mkdir(mode=0o711)
            self.home.chmod(0o711)  # passable: jobs of other users read slurm.conf below it
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not self.home.parent.is_dir():
                raise _not_ours(self.home, "No such file or directory") from None
            raise
        except OSError as error:
            raise _not_ours(self.home, error.strerror or "cannot be made") from error
        check_ours(self.home)

    def remove(self, *, keep_logs: bool) -> None:
        """Remove the files of a dead cluster, and the home with the last of them."""
        if keep_logs and self.logs.is_dir():
            for entry in self.path.iterdir():
                if entry != self.logs:
                    _remove(entry)
            return
        if os.path.lexists(self.path):
            check_ours(self.path)
            _remove(self.path)
        with contextlib.suppress(OSError):  # another cluster lives there
            self.home.rmdir()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One `up` or `down` at a time; gone with the process that holds it.

        Raises:
            TemporaryError: another one holds it for too long.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        # An abstract socket: no file, so none is left behind, and the kernel frees it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
            while True:
                with contextlib.suppress(OSError):
                    held.bind(f"\0muster-cluster:{self.path}")
                    break
                if time.monotonic() > deadline:
                    raise TemporaryError(
                        str(self.path), "another `muster cluster` is at work", "try again later"
                    )
                time.sleep(0.05)
            yield


def stop(folder: Folder, *, keep_logs: bool) -> bool:
    """Ask the keeper to end its cluster, and wait. Returns whether there was one.

    Raises:
        TemporaryError: it does not end.
    """
    link = folder.call_keeper()
    if link is None:
        return False
    with link, contextlib.suppress(ConnectionError):
        link.sendall(b"stop keep-logs\n" if keep_logs else b"stop\n")
        _until_closed(folder, link, STOP_TIMEOUT_S)
    return True


def wait_end(folder: Folder) -> None:
    """Until the keeper has ended; at once when there is none.

    Raises:
        TemporaryError: it does not end.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (link := folder.call_keeper()) is not None:
        with link, contextlib.suppress(ConnectionError):
            link.sendall(b"wait\n")
            _until_closed(folder, link, deadline - time.monotonic())


def _until_closed(folder: Folder, link: socket.socket, timeout_s: float) -> None:
    """The keeper never answers: the kernel closes the connection when it has ended."""
    link.settimeout(max(timeout_s, 0.01))
    try:
        link.recv(1)
    except socket.timeout as error:
        raise TemporaryError(
            str(folder.path), "the cluster does not end", "try again later"
        ) from error


def check_ours(path: Path) -> None:
    """Refuse a link, a foreign folder, and one that others may write.

    Raises:
        CreateError: it is one of these.
    """
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise _not_ours(path, "is not a folder")
    if facts.st_uid != os.getuid():
        raise _not_ours(path, f"belongs to user {facts.st_uid}")
    if facts.st_mode & 0o022:
        raise _not_ours(path, "may be written by others")


def _not_ours(path: Path, what: str) -> CreateError:
    return CreateError(
        str(path), what, "set MUSTER_CLUSTER_HOME to a folder of your own with a short path"
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
