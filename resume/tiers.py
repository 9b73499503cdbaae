"""Where checkpoints of a run are besides the shared file system, and how they come back.

The nearest tier that verifies is resumed from: the shared file system first; a training step that
is good only in the archive is brought back under its own name, and verified as if a rank had
published it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from muster.errors import ConfigError, DataError, StorageError, UnavailableError, UsageError
from muster.recipe import Checkpoints
from muster.site import Site, load_site
from resume import archive
from resume.archive import Archive, ArchiveError, open_store
from resume.checkpoint import step_name

_OURS = re.compile(r"step_\d{8,}(\.bad\d+|\.deleting|\.a\d+\.tmp|\.fetch\.tmp)?")


@dataclass(frozen=True)
class Place:
    """Where the archive of one run is."""

    url: str
    endpoint: Optional[str]


def place_of(
    site: Site, rules: Checkpoints, run_dir: Path, recipe: str, job: str
) -> Optional[Place]:
    """The run's place in the archive; None: the recipe wants none.

    Raises:
        ConfigError: the recipe wants an archive and the site has none, or not the library for it.
    """
    if not rules.archive:
        return None
    if site.archive.url is None:
        what = "the recipe wants an archive, the site has none"
        fix = "name archive.url in the site file, or pass checkpoints.archive=false"
        raise ConfigError("recipe.yaml: checkpoints.archive", what, fix)
    open_store(site.archive.url, site.archive.endpoint)
    url = archive.run_url(site.archive.url, run_dir, recipe, job)
    return Place(url, site.archive.endpoint)


def worth_fetching(archived: Iterable[int], have: int, checkpoints_dir: Path) -> list[int]:
    """Training steps to bring back from the archive, the best first.

    Args:
        archived: what the archive holds.
        have: training step of the best checkpoint on the shared file system; 0: none.
        checkpoints_dir: a name there like `step_00000030.not_this` is a person's word.
    """
    names = [p.name for p in checkpoints_dir.iterdir()] if checkpoints_dir.is_dir() else []
    moved = {name.partition(".")[0] for name in names if not _OURS.fullmatch(name)}
    newer = sorted((step for step in archived if step > have), reverse=True)
    return [step for step in newer if step_name(step) not in moved]


def add_parser(verbs: Any) -> None:
    """`muster restore`."""
    back = verbs.add_parser("restore", help="bring a checkpoint back from the archive")
    back.add_argument("run_dir", type=Path)
    back.add_argument("--step", type=int, help="training step (default: the newest there is)")
    back.add_argument("--from", dest="url", help="archive of the run (default: its archive.json)")
    back.set_defaults(func=restore, verb="restore")


def restore(arguments: argparse.Namespace) -> int:
    """Bring one checkpoint back into RUN_DIR/checkpoints, verified."""
    run_dir: Path = arguments.run_dir
    url = arguments.url or archive.known_url(run_dir / "archive.json")
    if url is None:
        what, fix = "the run has no archive.json", "pass --from s3://..., as another run of it says"
        raise UsageError(str(run_dir), what, fix)
    held = Archive(open_store(url, load_site().archive.endpoint))
    folder = run_dir / "checkpoints"
    try:
        step = arguments.step or max(held.steps(), default=None)
        if step is None:
            raise DataError(url, "holds no checkpoint", "look at the URL")
        if (folder / step_name(step)).exists():
            raise UsageError(str(folder / step_name(step)), "is there", "move it away first")
        problems = held.get(step, folder)
    except ArchiveError as error:
        raise UnavailableError(url, str(error), "see that the store answers, then again") from error
    except OSError as error:
        raise StorageError(str(folder), str(error), "free or repair the storage") from error
    if problems:
        where = f"{url}/{step_name(step)}"
        raise DataError(where, problems[0], "take another training step: --step N")
    print(f"{folder / step_name(step)}: good")
    return 0
