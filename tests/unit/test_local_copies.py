"""Copies on a node's own disk: made of what its ranks wrote, never trusted unread, never missed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.recipe import Checkpoints
from muster.site import Site
from resume.checkpoint import digest_body, read_manifest, step_name, verify
from resume.custody import Custody
from resume.journal import State
from resume.local_copies import Source, keep, run_folder, usable
from resume.sight import Sight, Wanted
from tests.harness.checkpoints import draft, publish, write


def two_ranks(run_dir: Path, step: int, text: bytes = b"x") -> Source:
    """A published checkpoint of which each of two ranks has written a file."""
    folder = run_dir / "checkpoints"
    one = draft(folder, step, world_size=2, rank=1)
    one.seal(write(one, {"deep/one.bin": text * 9}))
    zero = draft(folder, step, world_size=2)
    zero.seal(write(zero, {"zero.bin": text * 7}))
    zero.publish()
    return source_of(zero.published)


def source_of(path: Path) -> Source:
    body, _ = read_manifest(path)
    assert body is not None
    return Source(path, digest_body(body))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "7"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "disk", "nonce")


def load(source: Source, folder: Path) -> Path | None:
    return usable(source, folder, time.monotonic() + 60)


def test_own_files_are_copies_and_the_rest_are_links(run_dir: Path, folder: Path) -> None:
    source = two_ranks(run_dir, 5)
    assert keep(source, {1}, folder, 0) == 9
    mine = load(source, folder)
    assert mine == folder / "step_00000005"
    assert [(mine / name).is_symlink() for name in ("deep/one.bin", "zero.bin")] == [False, True]
    assert (mine / "deep/one.bin").read_bytes() == b"x" * 9
    assert (mine / "zero.bin").read_bytes() == b"x" * 7
    assert read_manifest(mine) == read_manifest(source.path)
    assert (folder.parent.stat().st_mode & 0o777, (folder / "run").readlink()) == (0o700, run_dir)
    assert verify(source.path) == []


def test_a_node_whose_ranks_wrote_nothing_keeps_nothing(run_dir: Path, folder: Path) -> None:
    assert keep(two_ranks(run_dir, 5), {2, 3}, folder, 0) == 0
    assert not folder.exists()


def test_only_the_newest_stays_and_an_older_one_is_no_copy_of_a_newer(
    run_dir: Path, folder: Path
) -> None:
    first, second = two_ranks(run_dir, 5), two_ranks(run_dir, 10)
    keep(first, {0}, folder, 0)
    assert load(second, folder) is None
    keep(second, {0}, folder, 0)
    assert sorted(path.name for path in folder.iterdir()) == ["run", "step_00000010"]
    assert load(first, folder) is None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def replace(path: Path, text: str | None = None) -> None:
    """By a file of its own, or a link to nowhere."""
    path.unlink()
    path.symlink_to("/dev/null") if text is None else path.write_text(text)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped byte": lambda mine: flip(mine / "deep/one.bin"),
    "truncated": lambda mine: os.truncate(mine / "deep/one.bin", 3),
    "missing": lambda mine: (mine / "deep/one.bin").unlink(),
    "a link is missing": lambda mine: (mine / "zero.bin").unlink(),
    "a link leads elsewhere": lambda mine: replace(mine / "zero.bin"),
    "no manifest": lambda mine: (mine / "manifest.json").unlink(),
    "a manifest of its own": lambda mine: replace(mine / "manifest.json", "{}"),
    "a file too many": lambda mine: (mine / "more.bin").write_bytes(b"1"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_copy_is_removed_and_not_used(
    name: str, run_dir: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = two_ranks(run_dir, 5)
    keep(source, {1}, folder, 0)
    DAMAGE[name](folder / "step_00000005")
    assert load(source, folder) is None
    assert "step_00000005: " in capsys.readouterr().err
    assert not (folder / "step_00000005").exists()
    assert verify(source.path) == []  # what links lead to was not touched


def test_a_copy_of_another_checkpoint_of_that_name_is_not_used(run_dir: Path, folder: Path) -> None:
    """After a rollback a training step is saved again."""
    keep(two_ranks(run_dir, 5), {1}, folder, 0)
    (run_dir / "checkpoints/step_00000005").rename(run_dir / "rolled_back")
    again = two_ranks(run_dir, 5, b"y")
    assert load(again, folder) is None
    assert keep(again, {1}, folder, 0) == 9
    assert load(again, folder) == folder / "step_00000005"


def test_what_changed_meanwhile_is_not_copied(run_dir: Path, folder: Path) -> None:
    source = two_ranks(run_dir, 5)
    flip(source.path / "zero.bin")
    with pytest.raises(OSError, match="is not what was copied"):
        keep(source, {0}, folder, 0)
    with pytest.raises(OSError, match="is not what it was"):
        keep(Source(source.path, "another"), {0}, folder, 0)
    assert load(source, folder) is None


def test_room_that_the_health_check_wants_is_left(run_dir: Path, folder: Path) -> None:
    with pytest.raises(OSError, match="0 bytes may be used, 7 needed"):
        keep(two_ranks(run_dir, 5), {0}, folder, 1 << 60)
    assert load(two_ranks(run_dir, 10), folder) is None


def test_who_reads_too_slowly_takes_the_shared_one(run_dir: Path, folder: Path) -> None:
    source = two_ranks(run_dir, 5)
    keep(source, {0}, folder, 0)
    assert usable(source, folder, time.monotonic() - 1) is None
    assert load(source, folder) is not None  # it was not removed for that


def test_copies_of_runs_that_are_over_go(run_dir: Path, folder: Path, tmp_path: Path) -> None:
    others = {}
    for name in ("done", "gone", "alive"):
        other = tmp_path / "runs" / name
        keep(source_of(publish(other / "checkpoints", 5)), {0}, folder.with_name(name), 0)
        others[name] = other
    (others["done"] / "DONE").touch()
    others["gone"].rename(tmp_path / "away")
    (folder.parent / "not ours").mkdir()
    keep(two_ranks(run_dir, 5), {0}, folder, 0)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["alive", "nonce", "not ours"]


def test_the_guard_finds_the_copy(run_dir: Path, folder: Path) -> None:
    source = two_ranks(run_dir, 5)

    def look(local: Path | None) -> Path | None:
        sight = Sight(Wanted(source.path, source.sha256, 0.0, local))
        deadline = time.monotonic() + 30
        while not sight.over:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert sight.problem is None
        return sight.copy

    assert look(folder) is None
    keep(source, {0}, folder, 0)
    assert look(folder) == folder / "step_00000005"
    assert look(None) is None


class Supervisor:
    """As much of one as custody asks for."""

    def __init__(self, run_dir: Path, scratch: Path) -> None:
        self.run_dir, self.state, self.orders = run_dir, State(), list[dict[str, Any]]()
        self.site = Site(scratch_path=scratch, scratch_min_free_bytes=3)
        self.recipe = SimpleNamespace(checkpoints=Checkpoints(local=True))
        self.fleet = SimpleNamespace(order=lambda **order: self.orders.append(order))

    def note(self, event: str, **facts: object) -> None:
        self.state.note({"event": event, **facts})


def test_what_was_verified_is_ordered_to_be_copied_unless_it_is_older(
    run_dir: Path, tmp_path: Path
) -> None:
    """The caretaker reads the newest first, and those before it later."""
    sources = {step: two_ranks(run_dir, step) for step in (5, 10, 15)}
    (run_dir / "nonce").write_text("nonce")
    s = Supervisor(run_dir, tmp_path / "disk")
    custody = Custody(s)  # type: ignore[arg-type]
    for step in (10, 5, 15):
        custody._take_down({"verified": step_name(step), "tier": "shared"})
    folder = str(run_folder(tmp_path / "disk", "nonce"))
    assert s.orders == [
        {"do": "keep", "path": str(sources[step].path), "sha256": sources[step].sha256,
         "folder": folder, "reserve_bytes": 3}
        for step in (10, 15)
    ]  # fmt: skip
    s.recipe.checkpoints = Checkpoints()
    custody._take_down({"verified": step_name(15), "tier": "shared"})
    assert len(s.orders) == 2
