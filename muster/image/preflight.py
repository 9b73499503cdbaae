"""Can this node, for this user, start a container? What users report, asked before a job waits.

Nothing is changed, but for what `enroot list` does itself. Everything is read below `root`, so that
tests have a node of files; a node that does not say something has no problem with it.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.image.fetch import is_shared, mounted_as
from muster.process import Completed, run

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where Pyxis finds Enroot: its epilog has no other, and where it fails the node is drained."""
TIMES = 3
"""A container takes about three times the size of its image, which is packed."""
MEMLOCK_BYTES = 16 << 30
_LIMIT_S = 30.0
_GIB = 1 << 30
_DEFAULTS = {"ENROOT_DATA_PATH": "~/.local/share/enroot", "ENROOT_TEMP_PATH": "/tmp"}  # noqa: S108
_SETTING = re.compile(r"\s*(ENROOT_[A-Z_]+)[ \t=]+(.*?)\s*")
_PLUGSTACKS = ("etc/slurm/plugstack.conf", "run/slurm/conf/plugstack.conf")

RULES = {
    "enroot": "Enroot answers, found and started as Pyxis's epilog does it: without variables",
    "pyxis": "srun has the options of Pyxis where plugstack.conf names it",
    "user-namespaces": "users may make user namespaces",
    "noexec": "programs can be run where containers are unpacked",
    "local-disk": "containers and layers are unpacked on a disk of the node",
    "space": f"{TIMES} times the image is free where it is unpacked",
    "runtime-path": "Pyxis puts images of a registry together on a disk, not in memory",
    "memlock": f"programs may lock {MEMLOCK_BYTES // _GIB} GiB of memory, as RDMA needs",
}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a node; `stops`: no container starts. Else it costs, or may."""

    rule: str
    seen: str
    fix: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.rule}: {self.seen}. Fix: {self.fix}"


@dataclass(frozen=True)
class Node:
    """A node as one user sees it."""

    root: Path = Path("/")
    uid: int = -1  # whose containers
    memlock: float = float("inf")  # bytes that a program may lock

    @classmethod
    def here(cls) -> Node:
        """This one, for whoever we are."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        unlimited = soft == resource.RLIM_INFINITY
        return cls(uid=os.geteuid(), memlock=float("inf") if unlimited else float(soft))

    def text(self, name: str) -> str:
        """A file; "" where it cannot be read."""
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def ask(self, *argv: str) -> Completed:
        """A program's answer, as Pyxis's epilog would get it: PATH is all it knows."""
        everywhere = f"{self.search_path}:{os.environ.get('PATH', '')}"  # Slurm may be elsewhere
        words = [shutil.which(argv[0], path=everywhere) or argv[0], *argv[1:]]
        return run(words, _LIMIT_S, env={"PATH": f"{self.search_path}:{PATH}"})

    @property
    def search_path(self) -> str:
        """PATH of that."""
        return ":".join(str(self.root / part.lstrip("/")) for part in PATH.split(":"))

    def has(self, program: str) -> bool:
        """Whether Pyxis would find a program."""
        return shutil.which(program, path=self.search_path) is not None


def problems(node: Node, image: Optional[Path] = None) -> Iterator[Problem]:
    """Everything that keeps a container from starting, or may.

    Args:
        node: where, and for whom.
        image: its file; None: one of a registry.
    """
    pyxis = pyxis_options(node)
    if not node.has("enroot"):
        if pyxis is not None:
            seen = f"not found in {PATH}: no container starts, and Pyxis's epilog drains the node"
            yield Problem("enroot", seen, "install Enroot there, or link it")
        return
    answer = node.ask("enroot", "list")
    if not answer.ok:
        seen = f"'env -i PATH={PATH} enroot list' ends with: {answer.reason}"
        fix = "containers/enroot on this node: paths of the user's number, a prolog that makes them"
        yield Problem("enroot", seen, fix)
    if pyxis is not None and "--container-image" not in node.ask("srun", "--help").out:
        seen = "plugstack.conf names Pyxis, and srun does not have its options"
        yield Problem("pyxis", seen, "build Pyxis for this release of Slurm; restart slurmd")
    yield from _namespaces(node)
    yield from _places(node, image, pyxis)
    if node.memlock < MEMLOCK_BYTES:
        seen = f"ulimit -l is {node.memlock / 1024:.0f} KiB, ulimit -n {_open_files()}"
        fix = "LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK"
        yield Problem("memlock", seen, fix, stops=False)


def _open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _namespaces(node: Node) -> Iterator[Problem]:
    limit = node.text("proc/sys/user/max_user_namespaces").strip()
    allowed = node.text("proc/sys/kernel/unprivileged_userns_clone").strip()
    if limit == "0":
        fix = "sysctl -w user.max_user_namespaces=100000"
        yield Problem("user-namespaces", "user.max_user_namespaces is 0", fix)
    if allowed == "0" and node.uid != 0:
        fix = "sysctl -w kernel.unprivileged_userns_clone=1"
        yield Problem("user-namespaces", "kernel.unprivileged_userns_clone is 0", fix)
    banned = node.text("proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1"
    if banned and node.uid != 0 and not (node.root / "etc/apparmor.d/enroot").exists():
        seen = "AppArmor lets only programs with a profile make one, and Enroot has none"
        fix = "Enroot's own profile as /etc/apparmor.d/enroot, or "
        fix += "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        yield Problem("user-namespaces", seen, fix)


def _places(
    node: Node, image: Optional[Path], pyxis: Optional[dict[str, str]]
) -> Iterator[Problem]:
    mounts = node.text("proc/mounts")
    paths = enroot_paths(node)
    kinds = {name: mounted_as(path, mounts) for name, path in paths.items()}
    data = paths["ENROOT_DATA_PATH"]
    if "noexec" in kinds["ENROOT_DATA_PATH"][1]:
        yield Problem("noexec", f"{data} is mounted noexec", "mount it with exec")
    for name, path in paths.items():
        kind, _ = kinds[name]
        if is_shared(kind):
            seen = f"{name} is {path}, on {kind}"
            yield Problem("local-disk", seen, f"{name} on a disk of the node", stops=False)
    options = pyxis or {}
    if image is not None and options.get("use_squashfuse") not in ("1", "true", "yes", "y"):
        size, free = image.stat().st_size, _free(node.root / str(data).lstrip("/"))
        if free < TIMES * size:
            seen = f"{data} has {free / _GIB:.1f} GiB, the image {size / _GIB:.1f} packed"
            fix = "remove old containers (enroot list, enroot remove), or a larger disk"
            yield Problem("space", seen, fix, stops=free < size)
    runtime = options.get("runtime_path", "/run/pyxis")
    if pyxis is not None and image is None and mounted_as(Path(runtime), mounts)[0] == "tmpfs":
        fix = "import it once (muster image import), or runtime_path=/var/lib/enroot/pyxis"
        seen = f"{runtime} is memory, and an image of a registry is put together there"
        yield Problem("runtime-path", seen, fix, stops=False)


def enroot_paths(node: Node) -> dict[str, Path]:
    """Where Enroot unpacks, by its files: evaluated by bash without variables, as it does."""
    folder = node.root / "etc/enroot/enroot.conf.d"
    names = [f"etc/enroot/enroot.conf.d/{path.name}" for path in sorted(folder.glob("*.conf"))]
    texts = [node.text(name) for name in ("etc/enroot/enroot.conf", *names)]
    found = dict(_DEFAULTS)
    for line in reversed([line for text in texts for line in text.split("\n")]):  # the first counts
        match = _SETTING.fullmatch(line)
        if match and match[1] in found:
            found[match[1]] = match[2]
    script = 'for value in "$@"; do eval "echo $value"; done'
    said = run(["bash", "-c", script, "bash", *found.values()], _LIMIT_S, env={"PATH": PATH}).out
    return {name: Path(value) for name, value in zip(found, said.split("\n"))}


def pyxis_options(node: Node) -> Optional[dict[str, str]]:
    """The arguments of Pyxis's line in plugstack.conf; None: nothing names it."""
    files = [node.root / name for name in _PLUGSTACKS]
    files += [
        path for file in files for path in sorted(file.parent.glob("plugstack.conf.d/*.conf"))
    ]
    for file in files:
        for line in node.text(str(file.relative_to(node.root))).splitlines():
            words = line.partition("#")[0].split()
            if len(words) > 1 and words[1].endswith("spank_pyxis.so"):
                return dict(word.partition("=")[::2] for word in words[2:])
    return None


def _free(folder: Path) -> int:
    """Bytes for users on its file system, or on that of the first folder above it that is there."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def readable(image: Path, uid: int) -> Optional[str]:
    """Why a user cannot read an image's file, in words; None: he can."""
    if os.access(image, os.R_OK):
        return None
    mode = stat.filemode(image.stat().st_mode)
    squashed = ", and root is nobody on many file servers" if uid == 0 else ""
    return f"cannot be read by user {uid} (mode {mode}{squashed})"
