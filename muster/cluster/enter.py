"""Run a command inside a cluster as if it ran here: same streams, folder, exit code, signals.

`nsenter` alone would not do: it forks to enter a process namespace, and whoever signals it hits
only the waiting parent. Here the parent passes signals on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional

from muster.cluster.files import Owner
from muster.cluster.keeper import namespace_pids
from muster.cluster.shape import CONTROLLER
from muster.errors import TemporaryError, UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.cluster.folder import Folder

FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
MACHINE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FROM_KERNEL = 0x80
"""si_code of a signal that the terminal sent to the whole process group: the child has it too."""


@dataclass(frozen=True)
class Order:
    """What to run where. `machine`: as the head's hardware sees it, for our own scripts only."""

    argv: Sequence[str]
    node: Optional[str] = None
    user: Optional[str] = None
    machine: bool = False
    env: Optional[Mapping[str, str]] = None  # None: ours, with the cluster's Slurm and programs


def run(folder: Folder, order: Order) -> int:
    """Run the order to its end; its exit status, 128 + number after a signal, 127: not found.

    The calling process is inside the cluster afterwards, so it should have nothing else to do.

    Raises:
        UnavailableError: the cluster is not up.
        TemporaryError: the node is switched off, or has no root of its own yet.
        UsageError: no such user, or not allowed to become it.
    """
    state = folder.state()
    init = state.get("init")
    if not isinstance(init, int):
        raise UnavailableError(
            f"cluster {folder.name!r}", "is not up", f"muster cluster up --name {folder.name}"
        )
    own_root = state["shape"].get("created") and not order.machine
    if own_root:
        order = on_machine(order)
    env = environment(folder, os.environ) if order.env is None else dict(order.env)
    me = Owner(pwd.getpwuid(os.getuid()).pw_name, os.getuid(), os.getgid())
    target = init if order.node is None else node_init(folder, init, order.node)
    if own_root and not (folder.path / "nodes" / str(order.node) / "own_root").exists():
        what = "is starting: a command would still see the files of this machine, not its own"
        raise TemporaryError(f"node {order.node}", what, "try again in a moment")
    argv = list(order.argv) if order.machine else [*me.prefix, *order.argv]
    cwd = Path.cwd()
    _join(target, nested=me.uid != 0)
    # Now that we are inside: people of the cluster are unknown outside.
    account = None if order.user in (None, me.name) else _account(order.user, me)
    if account is not None:
        env.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
    signal.pthread_sigmask(signal.SIG_BLOCK, [*FORWARDED, signal.SIGCHLD])
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(argv, env, cwd, account)
    return _wait(child)


def on_machine(order: Order) -> Order:
    """The same on a machine with a root of its own: its users, and nothing of our environment."""
    argv = (
        order.argv if order.user is None else ("su", "-", order.user, "-c", shlex.join(order.argv))
    )
    env = {"PATH": MACHINE_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
    env.update({name: os.environ[name] for name in ("TERM",) if name in os.environ})
    return Order(argv, node=order.node or CONTROLLER, env=env)


def environment(folder: Folder, ours: Mapping[str, str]) -> dict[str, str]:
    """Our environment, with the cluster's Slurm, site file and programs."""
    path = [str(folder.path / "bin"), *ours.get("PATH", os.defpath).split(":")]
    path += [extra for extra in ("/usr/sbin", "/sbin") if extra not in path]
    return {
        **ours,
        "PATH": ":".join(path),
        "SLURM_CONF": str(folder.path / "etc/slurm.conf"),
        "MUSTER_SITE": str(folder.path / "site.yaml"),
        "MUSTER_STATE_DIR": str(folder.path / "local/muster"),  # on each node's own disk
    }


def node_init(folder: Folder, world_init: int, node: str) -> int:
    """Our process id of the node's process 1. The cluster knows only its own number for it.

    Raises:
        TemporaryError: the node is switched off.
    """
    with contextlib.suppress(OSError, ValueError):
        inside = int((folder.path / "nodes" / node / "pid").read_text())
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and namespace_pids(int(entry.name))[-2:] == [inside, 1]:
                parent = _parent(int(entry.name))
                if parent is not None and _same_processes(parent, world_init):
                    return int(entry.name)
    raise TemporaryError(
        f"node {node}", "is switched off", f"muster cluster node start {node} --name {folder.name}"
    )


def _parent(pid: int) -> Optional[int]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("PPid:"):
                return int(line.split()[1])
    return None


def _same_processes(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{one}/ns/pid").readlink() == Path(f"/proc/{other}/ns/pid").readlink()
    return False


def _account(name: Optional[str], me: Owner) -> pwd.struct_passwd:
    if me.uid != 0:
        raise UsageError(
            f"--user {name}", "only root may run commands as somebody else", "leave --user out"
        )
    try:
        return pwd.getpwnam(name or "")
    except KeyError as error:
        fix = "muster cluster exec -- getent passwd"
        raise UsageError(f"--user {name}", "no such user", fix) from error


def _join(pid: int, *, nested: bool) -> None:
    """Enter the namespaces of `pid`; the process namespace holds from the next fork on."""
    libc = ctypes.CDLL(None, use_errno=True)
    kinds = [*(["user"] if nested else []), "mnt", "net", "uts", "pid"]
    try:
        fds = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    except OSError as error:
        raise TemporaryError("cluster", "it is just ending", "try again") from error
    for fd in fds:
        if libc.setns(fd, 0) != 0:
            raise TemporaryError("cluster", os.strerror(ctypes.get_errno()), "try again")
        os.close(fd)


def _become(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: Path,
    account: Optional[pwd.struct_passwd],
) -> NoReturn:
    """The child: the command itself."""
    try:
        if account is not None:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        _enter_first(cwd, account)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*FORWARDED, signal.SIGCHLD])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that is inherited
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 - that is what exec means
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: command not found\n".encode())
        os._exit(127)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    os._exit(126)


def _enter_first(cwd: Path, account: Optional[pwd.struct_passwd]) -> None:
    """Our folder; it may be closed to the user, or not be there: a home may not be there, too."""
    for folder in (cwd, *(() if account is None else (account.pw_dir,)), "/"):
        with contextlib.suppress(OSError):
            os.chdir(folder)
            return


def _wait(child: int) -> int:
    """Pass signals on until the child ends."""
    while True:
        info = signal.sigwaitinfo([*FORWARDED, signal.SIGCHLD])
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != FROM_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
