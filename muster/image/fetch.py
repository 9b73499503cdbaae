"""An image of a registry, by `enroot import`: its credentials, its temporary files."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from muster.errors import ConfigError, CreateError, TemporaryError, UnavailableError
from muster.image.reference import Reference
from muster.image.squash import SQUASH_OPTIONS

_IMPORT_LIMIT_S = 2 * 3600.0
_SHARED = re.compile(r"(nfs\d?|lustre|cifs|smb3|beegfs|gpfs|wekafs|ceph|9p|fuse\..*|afs)")
_TOGETHER = {"nvcr.io": "authn.nvidia.com"}
"""A registry whose tokens another machine gives: credentials are needed for both."""


def require_local(folder: Path, mounts: str) -> None:
    """Raises CreateError for a folder on shared storage: layers do not unpack there.

    Args:
        folder: absolute.
        mounts: the text of /proc/mounts.
    """
    kind, _ = mounted_as(folder, mounts)
    if is_shared(kind):
        what = f"is on {kind}, where extended attributes and whiteouts of layers fail"
        raise CreateError(str(folder), what, "name a folder on local disk with --temp")


def mounted_as(folder: Path, mounts: str) -> tuple[str, frozenset[str]]:
    """Type and options of the file system that a folder is on; empty ones where nothing says.

    Args:
        folder: absolute.
        mounts: the text of /proc/mounts.
    """
    kind, options, where = "", "", ""
    for line in mounts.split("\n"):  # alone: other line ends may be in a name
        parts = line.split(" ")
        if len(parts) < 4:
            continue
        place = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), parts[1])
        under = f"{folder}/".startswith(place.rstrip("/") + "/")
        if under and len(place) >= len(where):
            kind, options, where = parts[2], parts[3], place
    return kind, frozenset(options.split(","))


def is_shared(kind: str) -> bool:
    """Whether a type of file system has a server that other nodes use too."""
    return _SHARED.fullmatch(kind) is not None


def credentials_path(environment: Mapping[str, str]) -> Path:
    """Where Enroot looks for passwords of registries."""
    named = environment.get("ENROOT_CONFIG_PATH")
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return (Path(named) if named else home / "enroot") / ".credentials"


def require_credentials(path: Path, reference: Reference) -> None:
    """Refuse a file of passwords that others can read, or that lacks half of a pair.

    Raises:
        ConfigError: with what to do; never with anything out of the file.
    """
    try:
        facts = path.stat()
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return  # a public image needs none
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), f"chmod 600 {path}") from error
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise ConfigError(str(path), "others can read the passwords in it", f"chmod 600 {path}")
    machines = set(re.findall(r"^\s*machine\s+(\S+)", text, re.MULTILINE))
    registry = reference.registry or ""
    other = _TOGETHER.get(registry)
    if other and len(machines & {registry, other}) == 1:
        missing = ({registry, other} - machines).pop()
        what = f"has no line 'machine {missing}', whose password {registry} asks for too"
        fix = f"add it, with the login and password of {({registry, other} & machines).pop()}"
        raise ConfigError(str(path), what, fix)


def import_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of `enroot import`: layers in `folder`; zstd unless the site says else."""
    options = " ".join(SQUASH_OPTIONS)
    return {
        "ENROOT_SQUASH_OPTIONS": options, **environment, "ENROOT_TEMP_PATH": str(folder),
    }  # fmt: skip


def fetch(
    reference: Reference, made: Path, environment: Optional[Mapping[str, str]] = None
) -> None:
    """Import an image into a squashfs.

    Raises:
        UnavailableError: no enroot.
        TemporaryError: it failed; the registry may have.
    """
    argv = ["enroot", "import", "--output", str(made), reference.enroot]
    env = import_environment(environment or os.environ, made.parent)
    try:
        code = subprocess.run(argv, env=env, check=False, timeout=_IMPORT_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    except OSError:
        raise UnavailableError("enroot", "is not there", "install Enroot on this node") from None
    if code != 0:
        what = f"enroot import ended with {code}"
        fix = "read the lines above; after 401: the name, and the credentials file"
        raise TemporaryError(reference.enroot, what, fix)
