"""An image of images.yaml: built by buildah or docker, taken out of it, squashed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from muster.errors import DataError, StorageError, UnavailableError, UsageError
from muster.image.squash import Settings, prepare, squash
from muster.process import run

TOOLS = ("buildah", "docker")
_BUILD_LIMIT_S = 4 * 3600.0
_STEP_LIMIT_S = 1800.0
WHEELS = "/tmp/muster-wheels"  # noqa: S108  (in the build; what is below /tmp is not squashed)


def find_tool(wanted: Optional[str] = None) -> str:
    """The program that builds: the one that is wanted, else the first that is there.

    Raises:
        UnavailableError: none is.
    """
    for tool in (wanted,) if wanted else TOOLS:
        if shutil.which(tool):
            return tool
    raise UnavailableError(wanted or "buildah", "is not there", "apt-get install buildah")


def build_argv(
    tool: str,
    dockerfile: Path,
    tag: str,
    base: str,
    arguments: Mapping[str, str],
    *,
    local: bool,
    wheels: Optional[Path] = None,
) -> list[str]:
    """The line that builds.

    Args:
        tool: buildah or docker.
        dockerfile: its folder is all that the build sees.
        tag: what the image is called there.
        base: what it is built on.
        arguments: for the ARG lines.
        local: the base is on this machine: no registry is asked.
        wheels: folder that pip takes all packages from: no index is asked.

    Raises:
        UsageError: a folder of wheels that the tool cannot be given.
    """
    # buildah's own format has no SHELL: it would be dropped with a warning.
    start = ["buildah", "build", "--format", "docker"] if tool == "buildah" else ["docker", "build"]
    never = ["--pull-never"] if local and tool == "buildah" else []
    words = [w for pair in {"BASE_IMAGE": base, **arguments}.items() for w in _argument(*pair)]
    where = ["--file", str(dockerfile), "--tag", tag, str(dockerfile.parent)]
    return [*start, *never, *_wheels(tool, wheels), *words, *where]


def _wheels(tool: str, folder: Optional[Path]) -> list[str]:
    """Seen by the build, and not part of the image."""
    if folder is None:
        return []
    if tool != "buildah":
        raise UsageError("--wheels", f"{tool} builds without mounts", "use --tool buildah")
    there = os.path.isdir(folder)  # noqa: PTH112 - Path.is_dir raises for one that is too long
    if ":" in str(folder) or not there:
        what = "has a ':' in its path" if there else "is no folder"
        raise UsageError(f"--wheels {folder}", what, "name a folder of .whl files")
    return ["--volume", f"{folder}:{WHEELS}:ro"]


def _argument(name: str, value: str) -> list[str]:
    return ["--build-arg", f"{name}={value}"]


def build(argv: list[str]) -> None:
    """Build; what it prints goes where ours goes.

    Raises:
        DataError: it failed.
    """
    try:
        code = subprocess.run(argv, check=False, timeout=_BUILD_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if code != 0:
        what = f"{argv[0]} ended with {code}"
        raise DataError(argv[argv.index("--file") + 1], what, "read the lines above")


def to_squashfs(tool: str, tag: str, made: Path) -> None:
    """Take an image out of the tool's store, into a squashfs for Enroot."""
    with root_of(tool, tag, made.parent) as root:
        prepare(root, settings(tool, tag))
        squash(root, made)


@contextlib.contextmanager
def root_of(tool: str, tag: str, folder: Path) -> Iterator[Path]:
    """The root file system of an image, for us to change, as long as the context lasts."""
    if tool == "buildah":
        name = _say("buildah", "from", "--pull-never", tag)
        try:
            yield Path(_say("buildah", "mount", name))
        finally:
            run(["buildah", "rm", name], _STEP_LIMIT_S)
        return
    name = _say("docker", "create", tag)
    root, archive = folder / "root", folder / "root.tar"
    try:
        _say("docker", "export", "--output", str(archive), name)
        root.mkdir()
        no_owner = () if os.geteuid() == 0 else ("--no-same-owner",)
        _say("tar", "-x", "-f", str(archive), "-C", str(root), "--exclude=dev/*", *no_owner)
        archive.unlink()
        yield root
    finally:
        run(["docker", "rm", name], _STEP_LIMIT_S)


def settings(tool: str, tag: str) -> Settings:
    """How an image in the tool's store wants to be started."""
    words = ("inspect", "--type", "image") if tool == "buildah" else ("image", "inspect")
    try:
        said = json.loads(_say(tool, *words, tag))
        found = said["Docker"]["config"] if tool == "buildah" else said[0]["Config"]
        return settings_of(found)
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(tag, f"'{tool} inspect' says {error}", f"update {tool}") from error


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The part that counts of the configuration that Docker gives an image."""
    return Settings(
        environment=list(config.get("Env") or []),
        workdir=config.get("WorkingDir") or "/",
        entrypoint=list(config.get("Entrypoint") or []),
        command=list(config.get("Cmd") or []),
    )


def _say(*argv: str) -> str:
    done = run(argv, _STEP_LIMIT_S)
    if not done.ok:
        fix = "free space; without root: buildah unshare muster image ..."
        raise StorageError(" ".join(argv[:2]), done.reason, fix)
    return done.out.strip()
