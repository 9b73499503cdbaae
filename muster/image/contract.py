"""What a squashfs must have, so that Enroot and Pyxis start it as meant: the problems users report.

A pure look at a listing, at /etc/environment and at how it is packed; `read` gets all three.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.errors import DataError, UnavailableError
from muster.image.squash import compression, require_whole
from muster.process import RC_NOT_FOUND, Completed, run

_READ_LIMIT_S = 600.0
_LINE = re.compile(
    r"(?P<mode>[-dlcbps][-rwxsStT]{9}) (?P<owner>\d+/\d+) +(?:\d+, *)?\d+ \S+ \S+ "
    r"squashfs-root/?(?P<path>.*)"
)
_VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": ("all", "no GPU in the container"),
    "NVIDIA_DRIVER_CAPABILITIES": ("compute,utility", "a GPU, and no driver to use it"),
    "PYTORCH_VERSION": ("2.10.0", "Enroot's PyTorch hook sets no RANK"),
    "PYTHONNOUSERSITE": ("1", "packages in somebody's home take the place of the image's"),
}

FABRIC = re.compile(
    r"NCCL_(SOCKET_IFNAME|IB_\w+|NET(_PLUGIN)?|PROTO|ALGO|TOPO_FILE|CROSS_NIC)"
    r"|FI_\w+|GLOO_SOCKET_IFNAME|UCX_NET_DEVICES|LD_PRELOAD|OFI_\w+|RDMAV_\w+"
)
"""Facts of one cluster; `muster lint` has the same names for batch scripts, a test compares."""
_UNPACKED_ANYWHERE = ("zstd", "gzip", "xz", "lz4")


@dataclass(frozen=True)
class Entry:
    """One file of an image: its mode as `ls` writes it, uid/gid, where it points to."""

    mode: str
    owner: str
    link: Optional[str] = None


@dataclass(frozen=True)
class Problem:
    """What is wrong with an image: the rule, what was seen, what comes of it."""

    rule: str
    seen: str
    effect: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.seen}: {self.effect}"


RULES = {
    "enroot-files": "/etc/rc, /etc/environment, /etc/fstab and /etc/rc.local are there",
    "device-nodes": "no device nodes",
    "shell": "/bin/sh and bash are there, and can be run",
    "modes": "everybody can read every file, and enter every folder",
    "owner": "everything belongs to root",
    "variables": "the variables are set that NVIDIA's hook, PyTorch's hook and Python look at",
    "fabric": "no variable of a cluster's fabric is set",
    "compression": "it is packed with what every node can unpack: zstd, best",
}


def entries(listing: str) -> dict[str, Entry]:
    """{path without leading slash: entry} of `unsquashfs -lln`."""
    found = {}
    for line in listing.split("\n"):
        match = _LINE.fullmatch(line)
        if match:
            path, link = match["path"], None
            if match["mode"].startswith("l"):
                path, _, link = path.partition(" -> ")
            found[path] = Entry(match["mode"], match["owner"], link)
    return found


def resolve(files: Mapping[str, Entry], path: str, depth: int = 0) -> Optional[Entry]:
    """The entry that a path leads to within the image, through links; None: nowhere."""
    done = ""
    parts = path.split("/")
    for index, part in enumerate(parts):
        done = posixpath.join(done, part) if done else part
        entry = files.get(done)
        if entry is None or depth > 40:
            return None
        if entry.link is not None:
            base = posixpath.normpath(posixpath.join("/", posixpath.dirname(done), entry.link))
            rest = posixpath.join(base, *parts[index + 1 :]).strip("/")
            return resolve(files, rest, depth + 1)
    return files.get(done)


def problems(files: Mapping[str, Entry], environment: str, packed_with: str) -> Iterator[Problem]:
    """Everything that is wrong with an image.

    Args:
        files: what is in it.
        environment: its /etc/environment.
        packed_with: name of the compression.
    """
    yield from _wrong_files(files)
    yield from _wrong_variables(environment)
    if packed_with not in _UNPACKED_ANYWHERE:
        effect = "RHEL 9 cannot unpack it; what mksquashfs -comp zstd packs can be read everywhere"
        yield Problem("compression", packed_with, effect)


def _wrong_files(files: Mapping[str, Entry]) -> Iterator[Problem]:
    for name in ("etc/rc", "etc/environment", "etc/fstab", "etc/rc.local"):
        if name not in files or not files[name].mode.startswith("-"):
            effect = "it starts in /, with the PATH of the host"
            yield Problem("enroot-files", f"no /{name}", effect)
    devices = [name for name, entry in files.items() if entry.mode[0] in "bc"]
    if devices:
        yield Problem("device-nodes", _some(devices), "an ordinary user cannot unpack it")
    if not _runs(files, "bin/sh"):
        yield Problem("shell", "no /bin/sh", "/etc/rc does not run, the container does not start")
    if not any(_runs(files, f"{folder}/bash") for folder in ("bin", "usr/bin", "usr/local/bin")):
        yield Problem("shell", "no bash", "`muster run` starts ranks with it")
    closed = [name for name, entry in files.items() if _closed(entry)]
    if closed:
        yield Problem("modes", _some(closed), "ordinary users cannot read it")
    foreign = [name for name, entry in files.items() if entry.owner != "0/0"]
    if foreign:
        yield Problem("owner", _some(foreign), "the owner's number is somebody else's on a node")


def _wrong_variables(environment: str) -> Iterator[Problem]:
    given = dict(line.partition("=")[::2] for line in environment.split("\n") if "=" in line)
    for name, (example, effect) in _VARIABLES.items():
        wanted, value = set(example.split(",")), given.get(name)
        if name == "NVIDIA_DRIVER_CAPABILITIES" and value is not None and value != "all":
            value = value if wanted <= set(value.split(",")) else None
        if not value:
            yield Problem("variables", f"not {name}={example}", effect)
    for name in filter(FABRIC.fullmatch, given):
        effect = "right on one cluster, and slow or broken on the next; Enroot's environ.d has it"
        yield Problem("fabric", f"{name}={given[name]}", effect)


def _runs(files: Mapping[str, Entry], path: str) -> bool:
    entry = resolve(files, path)
    return entry is not None and entry.mode[0] == "-" and entry.mode[9] in "xt"


def _closed(entry: Entry) -> bool:
    if entry.mode[0] == "d":
        return not (entry.mode[7] == "r" and entry.mode[9] in "xt")
    return entry.mode[0] == "-" and entry.mode[7] != "r"


def _some(names: list[str]) -> str:
    shown = ", ".join(f"/{name}" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def read(path: Path) -> tuple[dict[str, Entry], str, str]:
    """The files of a squashfs, its /etc/environment, and what it is packed with.

    Raises:
        DataError: it is no whole squashfs.
        UnavailableError: no unsquashfs.
    """
    require_whole(path)
    packed_with = compression(path)
    name = str(path.absolute())  # else unsquashfs would take -x.sqsh for an option
    files = entries(_unsquashfs(path, "-lln", name).out)
    if "etc/environment" not in files:
        return files, "", packed_with
    return files, _unsquashfs(path, "-cat", name, "etc/environment").out, packed_with


def _unsquashfs(path: Path, *words: str) -> Completed:
    done = run(["unsquashfs", *words], _READ_LIMIT_S)
    if done.rc == RC_NOT_FOUND:
        raise UnavailableError("unsquashfs", "is not there", "apt-get install squashfs-tools")
    if not done.ok:
        raise DataError(str(path), f"unsquashfs: {done.reason}", "make it again")
    return done
