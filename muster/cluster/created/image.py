"""Images of machines: the bare one with packages, and the disks of a cluster that was created.

The bare one is what a cloud offers: Debian with the packages that the steps want, fetched once and
shared by all machines. Nothing of the host changes. The disks of a created cluster are kept powered
off, under a name that says what they were made of: the same cluster then starts from them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from muster import process
from muster.cluster.created import bundle, description
from muster.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.cluster.shape import Shape

PACKAGES = (
    *("munge", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("ca-certificates", "iproute2", "procps", "util-linux", "python3", "openssh-client"),
    "logrotate",
)
ACCOUNTING_PACKAGES = ("mariadb-server", "slurmdbd", "slurm-wlm-mysql-plugin")
INSTALL_TIMEOUT_S = 900.0
_OVERLAID = ("/usr", "/etc", "/var")


def place(checkout: Path) -> Path:
    """Where images are kept: $MUSTER_MACHINES, else .muster/machines of the checkout.

    Raises:
        UsageError: it lies below a folder that the machines have from this one.
    """
    given = os.environ.get("MUSTER_MACHINES")
    found = Path(given).absolute() if given else checkout / ".muster" / "machines"
    for folder in _OVERLAID:
        if found.resolve().is_relative_to(folder):
            what = f"lies below {folder}, which the machines have from here"
            raise UsageError(str(found), what, "set MUSTER_MACHINES to a folder elsewhere")
    return found


def ensure_base(at: Path, *, accounting: bool) -> Path:
    """The bare image, made if it is missing or this machine's own packages have changed.

    Args:
        at: where images are kept.
        accounting: with what accounting wants, too.

    Raises:
        UnavailableError: packages cannot be had.
    """
    at.mkdir(parents=True, exist_ok=True)
    at.chmod(0o700)  # there are keys in the images of created clusters
    packages = (*PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ()))
    kind = "accounting" if accounting else "plain"
    base = at / f"base-{kind}-{_base_key(packages)}"
    with _lock(at / "lock"):
        if base.is_dir():
            return base
        for old in at.glob(f"base-{kind}-*"):
            shutil.rmtree(old, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix="base-new-", dir=at))
        try:
            _install(draft, packages)
            for part in ("root", "work"):  # its mounts ended with the script
                shutil.rmtree(draft / part)
            draft.chmod(0o755)
            draft.rename(base)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return base


def _install(draft: Path, packages: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scripts = []
        for package, name in (
            ("muster.cluster.created", "base.sh"),
            ("muster.cluster", "install.sh"),
        ):
            scripts.append(Path(folder) / name)
            scripts[-1].write_bytes(pkgutil.get_data(package, name) or b"")
        unshare = ["unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc"]
        words = ["bash", str(scripts[0]), str(draft), str(scripts[1]), *packages]
        done = process.run([*unshare, *words], INSTALL_TIMEOUT_S)
    if not done.ok:
        what = f"the image of the machines cannot be made: {done.reason}"
        fix = "is there a network? apt-get update && apt-get install --dry-run mariadb-server"
        raise UnavailableError(str(draft.parent), what, fix)


def _base_key(packages: Sequence[str]) -> str:
    """Names what the image is made of: our script, the packages, and those of this machine."""
    found = hashlib.sha256(pkgutil.get_data("muster.cluster.created", "base.sh") or b"")
    found.update(" ".join(packages).encode())
    with contextlib.suppress(OSError):
        found.update(Path("/var/lib/dpkg/status").read_bytes())
    return found.hexdigest()[:16]


def disks(at: Path, base: Path, checkout: Path, shape: Shape) -> Path:
    """Where the disks of this very cluster are, once they have been saved."""
    facts = [base.name, shape.to_json(), description.cluster_yaml(shape)]
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    return at / f"disks-{bundle.key(checkout)}-{found.hexdigest()[:16]}"


def save(source: Path, shape: Shape, target: Path) -> None:
    """Copy the disks of machines that are off, and the shared one.

    Args:
        source: the cluster's folder as it is seen from here, mounts included.
        shape: its shape.
        target: the folder that then exists, or is left as it was.
    """
    with _lock(target.parent / "lock"):
        if target.is_dir():
            return
        for old in target.parent.glob("disks-????????????????-*"):
            if old.name[:22] != target.name[:22]:  # of other steps than there are now
                shutil.rmtree(old, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix="disks-new-", dir=target.parent))
        try:
            for name in shape.machines:
                # cp keeps what overlays need: extended attributes, and devices that mean "removed".
                _copy(source / "disks" / name, draft / name)
                shutil.rmtree(draft / name / "work", ignore_errors=True)
            _copy(source / "shared", draft / "shared")
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    done = process.run(["cp", "-a", str(source), str(target)], 120)
    if not done.ok:
        what = f"cannot be copied: {done.reason}"
        raise UnavailableError(str(source), what, "make room on this machine's disk")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One maker of images at a time; others wait and find it made."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
