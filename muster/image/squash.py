"""A root file system into a squashfs that Enroot starts: its own four files, then mksquashfs."""

from __future__ import annotations

import os
import shlex
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

from muster.errors import DataError, StorageError, UnavailableError
from muster.process import RC_NOT_FOUND, run

SQUASH_OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")
"""Half the size of Enroot's own default in a fifth of the time; RHEL 9 has no lzo any more."""
_SQUASH_LIMIT_S = 3600.0
_MAGIC = b"hsqs"
_HEAD = 96  # bytes of a squashfs superblock; its compression is at 20, its length in bytes at 40
_COMPRESSIONS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}


@dataclass(frozen=True)
class Settings:
    """What an image says about how it is started."""

    environment: list[str] = field(default_factory=list)  # NAME=value
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def enroot_files(settings: Settings) -> dict[str, str]:
    """{path in the image: text} of what Enroot looks for; Pyxis takes its defaults from them."""
    start = shlex.join(settings.entrypoint)
    command = shlex.join(settings.command or ([] if settings.entrypoint else ["/bin/sh"]))
    workdir = settings.workdir or "/"
    rc = (
        f'mkdir -p "{workdir}" 2>/dev/null\n'
        f'cd "{workdir}" && unset OLDPWD || exit 1\n'
        "[ ! -s /etc/rc.local ] || . /etc/rc.local\n"
        f'[ $# -gt 0 ] || set -- {command}\nexec {start} "$@"\n'
    )
    return {
        "etc/rc": rc.replace("exec  ", "exec "),
        "etc/environment": "".join(f"{line}\n" for line in settings.environment),
        "etc/fstab": "",
        "etc/rc.local": "# Read by /etc/rc when the container starts.\n",
    }


def prepare(root: Path, settings: Settings) -> None:
    """Make a root file system fit to be squashed: Enroot's files, no device nodes, readable by all.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        for name, text in enroot_files(settings).items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():  # it may point out of the image
                file.unlink()
            file.write_text(text, encoding="utf-8")
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                _admit(Path(folder, name))
    except OSError as error:
        where = str(error.filename or root)
        raise StorageError(where, error.strerror or str(error), "free space there") from error


def _admit(path: Path) -> None:
    """No device node stays; everything can be read by whoever runs the container."""
    mode = path.lstat().st_mode
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        path.unlink()
        return
    wanted = stat.S_IMODE(mode)
    if stat.S_ISDIR(mode):
        wanted |= 0o755
    elif stat.S_ISREG(mode):
        wanted |= 0o444 | stat.S_IWUSR | (0o111 if mode & 0o111 else 0)
    if wanted != stat.S_IMODE(mode):  # else: an overlay would copy the whole file for nothing
        path.chmod(wanted)


def squash(root: Path, target: Path) -> None:
    """Write the squashfs; the same bytes for the same root file system.

    Files keep their times: with one time for all, every .pyc would be out of date, and each start
    of Python on a read-only image would compile torch anew.

    Raises:
        UnavailableError: no mksquashfs.
        StorageError: it failed.
    """
    argv = [
        *("mksquashfs", str(root), str(target), "-noappend", "-no-progress", "-quiet"),
        *("-all-root", "-mkfs-time", "0", "-reproducible", *SQUASH_OPTIONS),
        # What the host mounts there is not part of the image; the folders are.
        *("-wildcards", "-e", "dev/*", "proc/*", "sys/*", "run/*", "tmp/*", ".dockerenv"),
    ]
    done = run(argv, _SQUASH_LIMIT_S)
    if done.rc == RC_NOT_FOUND:
        raise UnavailableError("mksquashfs", "is not there", "apt-get install squashfs-tools")
    if not done.ok:
        raise StorageError(str(target), f"mksquashfs: {done.reason}", "free space there")


def require_whole(path: Path) -> None:
    """Prove that a file is a squashfs of which nothing is missing.

    Raises:
        DataError: it is not.
    """
    name_it = "name a .sqsh file that you can read"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(str(path), "is no ordinary file", name_it)
        with path.open("rb") as file:
            head = file.read(_HEAD)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(str(path), error.strerror or str(error), name_it) from error
    fix = f"rm {shlex.quote(str(path.absolute()))}, then make it again"
    if len(head) < _HEAD or head[:4] != _MAGIC:
        raise DataError(str(path), "is no squashfs", fix)
    (wanted,) = struct.unpack_from("<Q", head, 40)
    if size < wanted:
        raise DataError(str(path), f"has {size} of {wanted} bytes", fix)


def compression(path: Path) -> str:
    """What a whole squashfs is packed with, by its superblock.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            (number,) = struct.unpack_from("<H", file.read(_HEAD), 20)
    except (OSError, struct.error) as error:
        raise DataError(str(path), str(error), "make it again") from error
    return _COMPRESSIONS.get(number, f"compression {number}")
