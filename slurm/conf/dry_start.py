"""Slurm's own daemons asked: a slurmctld of our own, on ports and in a folder of its own, reads it.

Slurm has no "check the configuration" option. So the files are copied into a private folder, what
would touch the real cluster is replaced (controllers, addresses, ports, state, accounting, munge),
and slurmctld is started on it. Every node has the address 127.0.0.1 and a port where nobody
listens. `slurmd -G` reads gres.conf and cgroup.conf for one node of each group.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from muster.errors import UnavailableError
from muster.process import run
from slurm.conf.owned import logical_lines

ASK_S = 20.0
_STOP_S = 10.0
# What would reach beyond the private folder, and what it is replaced by below.
_REPLACED = re.compile(
    r"(SlurmctldHost|Slurm(ctld|d)?User|Auth\w*|Cred\w*|StateSaveLocation|Slurm(ctld|d)PidFile"
    r"|Slurm(ctld|d)LogFile|Slurm(ctld|d)Port|SlurmdSpoolDir|AccountingSto\w+|JobAcctGather\w*"
    r"|JobComp\w*|MailProg|PlugStackConfig|SlurmctldPrimaryO\w*"
    r"|(Prolog|Epilog)Slurmctld|(Resume|Suspend|Reboot)\w*Program|BurstBuffer\w*|JobSubmitPlugins"
    r"|TLSType|HashPlugin)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"MailProg|mpi/|MPI:|PMIx|Could not open \w+ state file|create_mmap|Trying backup state"
    r"|Zero Bytes were transmitted"  # our own look at its port
    r"|not responding|Connection refused|agent/"  # there are no such nodes
    r"|default partition not set"  # every job names one then: a choice of the site
    r"|High latency for \d+ calls"  # this machine is busy
)
_GRES = re.compile(r"Gres Name=gpu\b.*?\bCount=(\d+)")
_DEVICE = re.compile(r"\bFile=\S*/(\S+)", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What the daemons say.

    Attributes:
        version: of the slurmctld that was asked.
        seconds: from its start to its first answer.
        partitions: {name: number of nodes}, as sinfo lists them.
        gpus: {node: GPUs that slurmd reads for it}; a node is missing if it could not be asked.
        complaints: what they call an error, one line each.
    """

    version: str
    seconds: float
    partitions: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def installed_version() -> Optional[str]:
    """The release of Slurm on this machine; None: there is none."""
    for program in ("slurmctld", "slurmd", "sinfo"):
        done = run([_path(program), "-V"], ASK_S)
        if done.ok and re.search(r"\d+\.\d+", done.out):
            return done.out.split()[-1]
    return None


def _path(program: str) -> str:
    everywhere = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:/opt/slurm/sbin"
    return shutil.which(program, path=everywhere) or program


def private_copy(
    files: Mapping[str, Optional[str]], folder: Path, user: str, ports: tuple[int, int]
) -> dict[str, str]:
    """The files for a dry start in `folder`, by name; pure."""
    head = [
        f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/none",
        "CredType=cred/none",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd.pid",
        f"SlurmctldPort={ports[0]}",
        f"SlurmdPort={ports[1]}",
    ]
    body = []
    for name in ("slurm.conf", "muster.conf"):
        for line in logical_lines(files.get(name) or ""):
            key = re.split(r"[\s=]", line, maxsplit=1)[0]
            if not _REPLACED.fullmatch(key) and not line.lower().startswith("include"):
                body.append(_at_home(line) if key.lower() == "nodename" else line)
    others = {
        name: text
        for name, text in files.items()
        if text is not None and name not in ("slurm.conf", "muster.conf", "plugstack.conf")
    }
    if "gres.conf" in others:
        here = f"File={folder}/dev/"
        others["gres.conf"] = _DEVICE.sub(lambda m: here + m[1], others["gres.conf"])
    return {**others, "slurm.conf": "\n".join([*head, *body, ""])}


def _at_home(line: str) -> str:
    """A NodeName line whose nodes are all here."""
    bare = re.sub(r"\s(NodeAddr|NodeHostname|Port)=\S+", "", line, flags=re.IGNORECASE)
    default = re.match(r"NodeName=DEFAULT\b", bare, re.IGNORECASE)
    return bare if default else f"{bare} NodeAddr=127.0.0.1"


def ask(
    files: Mapping[str, Optional[str]], folder: Path, nodes: Mapping[str, int], limit_s: float
) -> Answer:
    """Start slurmctld on the files and ask what it has understood.

    Args:
        files: slurm.conf, muster.conf and the others, by name.
        folder: an empty private folder.
        nodes: {node: its GPUs}: one of each group, for `slurmd -G`.
        limit_s: longest wait for an answer.

    Raises:
        UnavailableError: no slurmctld here.
    """
    version = installed_version()
    if version is None or not Path(_path("slurmctld")).is_absolute():
        raise UnavailableError(
            "slurmctld", "not on this machine", "apt-get install slurmctld slurmd"
        )
    for name in ("state", "spool", "dev"):
        (folder / name).mkdir(mode=0o700)
    ports = _free_ports()
    for name, text in private_copy(files, folder, _user(), ports).items():
        (folder / name).write_text(text)
    conf = folder / "slurm.conf"
    gpus, said = _ask_slurmd(conf, nodes)
    began = time.monotonic()
    with _slurmctld(conf) as daemon:
        partitions = _partitions(conf, ports[0], daemon, limit_s)
        seconds = time.monotonic() - began
        log = (folder / "log").read_text(errors="replace")
    complaints = [*(f"slurmctld: {line}" for line in _complaints(log)), *said]
    if partitions is None:
        complaints = complaints or [f"slurmctld: no answer in {limit_s:g} s"]
    return Answer(version, seconds, partitions or {}, gpus, complaints)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def _slurmctld(conf: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (conf.parent / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [_path("slurmctld"), "-D", "-c", "-f", str(conf)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=conf.parent,
            start_new_session=True,
        )
        try:
            yield daemon
        finally:  # it has children; all of them are in its session
            for signum in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(daemon.pid, signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(_STOP_S)
                    break


def _partitions(
    conf: Path, port: int, daemon: subprocess.Popen[bytes], limit_s: float
) -> Optional[dict[str, int]]:
    """{partition: number of nodes} as soon as slurmctld answers; None: it ended, or never did."""
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    end = time.monotonic() + limit_s
    while daemon.poll() is None and time.monotonic() < end:
        if not _listens(port):  # sinfo would go on asking long after slurmctld has given up
            time.sleep(0.05)
            continue
        done = run([_path("sinfo"), "-h", "-o", "%R|%D"], ASK_S, env=environment)
        if done.ok:
            counts: dict[str, int] = {}
            for line in done.out.splitlines():
                name, _, number = line.partition("|")
                counts[name] = counts.get(name, 0) + (int(number) if number.isdigit() else 0)
            return counts
    return None


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _complaints(log: str) -> list[str]:
    """What a daemon calls an error or fatal, without its time stamps, each once."""
    found = []
    for line in log.splitlines():
        match = re.search(r"(?:error|fatal): (.*)", line)
        if match and not _HARMLESS.search(match[1]) and (text := match[1].strip()) not in found:
            found.append(text)
    return found


def _ask_slurmd(conf: Path, nodes: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """({node: GPUs that slurmd finds in gres.conf}, what it complains of)."""
    found: dict[str, int] = {}
    said: list[str] = []
    if not _make_devices(conf.parent / "dev", max(nodes.values(), default=0)):
        return found, said
    for node in nodes:
        done = run([_path("slurmd"), "-G", "-N", node, "-f", str(conf)], ASK_S)
        said += [f"slurmd for {node}: {line}" for line in _complaints(done.err + done.out)]
        if done.ok:
            found[node] = sum(int(count) for count in _GRES.findall(done.err + done.out))
    return found, said


def _make_devices(folder: Path, count: int) -> bool:
    """Stand-ins for /dev/nvidia0...: Slurm counts only devices. False: only root can make them."""
    try:
        for number in range(count):
            os.mknod(folder / f"nvidia{number}", 0o600 | stat.S_IFCHR, os.makedev(195, number))
    except OSError:
        return False
    return True
