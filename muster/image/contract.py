"""What a squashfs must have, so that Enroot and Pyxis start it as meant: the problems users report.

A pure look at a listing and at /etc/environment; `read` gets both with unsquashfs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.errors import DataError, UnavailableError
from muster.image.squash import require_whole
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
    "shell": "/bin/sh is there, and can be run",
    "modes": "everybody can read every file, and enter every folder",
    "owner": "everything belongs to root",
    "variables": "the variables are set that NVIDIA's hook, PyTorch's hook and Python look at",
}


def entries(listing: str) -> dict[str, Entry]:
    """{path without leading slash: entry} of `unsquashfs -lln`."""
    found = {}
    for line in listing.splitlines():
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


def problems(files: Mapping[str, Entry], environment: str) -> Iterator[Problem]:
    """Everything that is wrong with an image."""
    for name in ("etc/rc", "etc/environment", "etc/fstab", "etc/rc.local"):
        if name not in files or not files[name].mode.startswith("-"):
            effect = "it starts in /, with the PATH of the host"
            yield Problem("enroot-files", f"no /{name}", effect)
    devices = [name for name, entry in files.items() if entry.mode[0] in "bc"]
    if devices:
        yield Problem("device-nodes", _some(devices), "an ordinary user cannot unpack it")
    shell = resolve(files, "bin/sh")
    if shell is None or not shell.mode.startswith("-") or shell.mode[9] not in "xt":
        yield Problem("shell", "no /bin/sh", "/etc/rc and the hooks of Enroot do not run")
    closed = [name for name, entry in files.items() if _closed(entry)]
    if closed:
        yield Problem("modes", _some(closed), "ordinary users cannot read it")
    foreign = [name for name, entry in files.items() if entry.owner != "0/0"]
    if foreign:
        yield Problem("owner", _some(foreign), "the owner's number is somebody else's on a node")
    given = dict(line.partition("=")[::2] for line in environment.splitlines() if "=" in line)
    for name, (example, effect) in _VARIABLES.items():
        wanted, value = set(example.split(",")), given.get(name)
        if name == "NVIDIA_DRIVER_CAPABILITIES" and value is not None and value != "all":
            value = value if wanted <= set(value.split(",")) else None
        if not value:
            yield Problem("variables", f"not {name}={example}", effect)


def _closed(entry: Entry) -> bool:
    if entry.mode[0] == "d":
        return not (entry.mode[7] == "r" and entry.mode[9] in "xt")
    return entry.mode[0] == "-" and entry.mode[7] != "r"


def _some(names: list[str]) -> str:
    shown = ", ".join(f"/{name}" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def read(path: Path) -> tuple[dict[str, Entry], str]:
    """The files of a squashfs, and its /etc/environment.

    Raises:
        DataError: it is no whole squashfs.
        UnavailableError: no unsquashfs.
    """
    require_whole(path)
    files = entries(_unsquashfs(path, "-lln", str(path)).out)
    if "etc/environment" not in files:
        return files, ""
    return files, _unsquashfs(path, "-cat", str(path), "etc/environment").out


def _unsquashfs(path: Path, *words: str) -> Completed:
    done = run(["unsquashfs", *words], _READ_LIMIT_S)
    if done.rc == RC_NOT_FOUND:
        raise UnavailableError("unsquashfs", "is not there", "apt-get install squashfs-tools")
    if not done.ok:
        raise DataError(str(path), f"unsquashfs: {done.reason}", "make it again")
    return done
