"""A root file system of this machine's own programs and this very Python: a base in a few seconds.

It is all that a Dockerfile of ours asks of a base, but for pip. In place of the frameworks it may
have modules that only have a name; or torch is installed on it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROGRAMS = (
    *("bash", "sh", "env", "cat", "rm", "mv", "mkdir", "mktemp", "ls", "id"),
    *("sleep", "date"),
)
LIBRARIES = (  # what wheels take for granted; that of a program is found by itself
    *("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0"),
    *("librt.so.1", "libutil.so.1", "libz.so.1", "libresolv.so.2", "libmvec.so.1", "libanl.so.1"),
)
STUBS = (
    *("torch/__init__", "torch/distributed/__init__", "torch/distributed/checkpoint", "numpy"),
    *("yaml", "tokenizers", "sentencepiece", "pyarrow", "psutil", "lightning/__init__"),
    *("lightning/pytorch", "megatron/core/dist_checkpointing", "nemo/collections/llm"),
)
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/workspace:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_SYSTEM = ("/usr/", "/lib")
_OTHER = Path("/usr/local")  # where a Python goes that is not the system's


def make_root(root: Path, *, stubs: bool = True) -> None:
    """Write it."""
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc", "tmp", "proc", "sys", "dev", "opt"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    for name, text in FILES.items():
        (root / name).write_text(text)
    programs = [Path(f"/usr/bin/{name}") for name in PROGRAMS]
    for program in programs:
        _copy(program.resolve(), root)
        if program.resolve() != program:
            (root / "usr/bin" / program.name).symlink_to(program.resolve())
    extensions = _python(root)
    for library in _libraries([*programs, *extensions]) | _named():
        _copy(library, root)
    for stub in STUBS if stubs else ():
        module = _site(root) / f"{stub}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("")


def _python(root: Path) -> list[Path]:
    """This interpreter and its library; returns what is linked against something."""
    program, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    target = _inside(root, program)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, target)
    for name in {"python", "python3"} - {target.name}:
        (root / "usr/bin" / name).symlink_to("/" / target.relative_to(root))
    unwanted = shutil.ignore_patterns(
        *("test", "idlelib", "__pycache__", "config-*", "ensurepip", "site-packages"),
        *("dist-packages", "EXTERNALLY-MANAGED"),  # pip is to install here
    )
    shutil.copytree(library, _inside(root, library), ignore=unwanted, dirs_exist_ok=True)
    _site(root).mkdir(parents=True, exist_ok=True)
    return [program, *library.glob("lib-dynload/*.so")]


def _site(root: Path) -> Path:
    """Where this Python looks for packages, in the root."""
    names = ("lib", f"python3.{sys.version_info[1]}", "site-packages")
    debian = root / "usr/lib/python3/dist-packages"
    return debian if sys.base_prefix == "/usr" else root / str(_OTHER)[1:] / Path(*names)


def _inside(root: Path, path: Path) -> Path:
    """The place in the root: the same, or below /usr/local if somebody has built this Python."""
    prefix = Path(sys.base_prefix)
    if str(prefix) != "/usr" and path.is_relative_to(prefix):
        path = _OTHER / path.relative_to(prefix)
    return root / str(path).lstrip("/")


def _libraries(programs: list[Path]) -> set[Path]:
    """All that they load."""
    listing = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, check=False
    )
    words = (
        word for line in listing.stdout.splitlines() if line[:1].isspace() for word in line.split()
    )
    return {Path(word) for word in words if word.startswith("/")}


def _named() -> set[Path]:
    """Those of LIBRARIES that this machine has."""
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    first: dict[str, Path] = {}
    for line in listing.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        first.setdefault(name.partition(" ")[0], Path(path))
    return {first[name] for name in LIBRARIES if name in first}


def _copy(file: Path, root: Path) -> None:
    """To its own place; a library from elsewhere to where the loader looks."""
    system = str(file).startswith(_SYSTEM)
    target = root / (str(file).lstrip("/") if system else f"usr/lib/{file.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)
