"""What a customer uploads for a cloud's machines to fetch: lifecycle/ with muster.pyz in it.

Both are made from this checkout, and once per state of it: their folder is named by what went in.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from muster.cluster.archive import PACKAGES, SETTINGS
from muster.cluster.archive import make as make_archive

_SUFFIXES = {".py", ".sh", ".yaml", ".json", ".conf", ".env", ".fstab", ".c"}


def key(checkout: Path) -> str:
    """Names the state of everything that a bundle is made of."""
    found = hashlib.sha256()
    for path in _sources(checkout):
        found.update(f"{path.relative_to(checkout)}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def make(checkout: Path, place: Path) -> Path:
    """The bundle of this checkout in a folder of `place`; made if it is not there yet."""
    bundle = place / f"bundle-{key(checkout)}"
    if bundle.is_dir():
        return bundle
    place.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="bundle-new-", dir=place))
    try:
        _upload(checkout, draft)
        for old in place.glob("bundle-????????????????"):
            shutil.rmtree(old, ignore_errors=True)
        if not bundle.is_dir():  # else another one was faster
            draft.rename(bundle)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return bundle


def _upload(checkout: Path, draft: Path) -> None:
    scripts = shutil.ignore_patterns("*.py", "__pycache__", "examples")
    shutil.copytree(checkout / "lifecycle", draft, ignore=scripts, dirs_exist_ok=True)
    make_archive(checkout, draft / "muster.pyz")
    draft.chmod(0o755)


def _sources(checkout: Path) -> Iterator[Path]:
    for package in (*PACKAGES, *SETTINGS):
        for path in sorted((checkout / package).rglob("*")):
            if path.suffix in _SUFFIXES and "__pycache__" not in path.parts and path.is_file():
                yield path
