"""A damaged checkpoint is always found, set aside and never resumed from; a good one always is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume.checkpoint import (
    MANIFEST,
    discard_drafts,
    pick,
    prune,
    read_manifest,
    step_name,
    verify,
)
from tests.harness.checkpoints import SHARDS, publish

SHARD = "shard_0.bin"


def flip(path: Path, position: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def move_away_and_link(path: Path, outside: Path) -> None:
    """The same bytes, but they belong to somebody else now."""
    path.rename(outside)
    path.symlink_to(outside)


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("/no/file")


def folder_to(path: Path, content: bytes | None) -> None:
    shutil.rmtree(path)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


def file_to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def take_manifest_of(other: Path, one: Path) -> None:
    shutil.copy(other / MANIFEST, one / MANIFEST)


def forge(path: Path, **changes: Any) -> None:
    """A manifest that was edited by hand, its digest not."""
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["body"].update(changes)
    (path / MANIFEST).write_text(json.dumps(manifest, sort_keys=True) + "\n")


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    # what has happened: (how, what verify says)
    "byte flipped in a shard": (lambda p: flip(p / SHARD, 7), f"{SHARD} does not match its checks"),
    "last bit flipped in a deep shard": (
        lambda p: flip(p / "deep/shard_1.bin", -1, 128),
        "deep/shard_1.bin does not match its checksum",
    ),
    "shard truncated by a byte": (
        lambda p: replace(p / SHARD, SHARDS[SHARD][:-1]),
        f"{SHARD} has 199 bytes instead of 200",
    ),
    "shard of length zero": (lambda p: replace(p / SHARD, b""), f"{SHARD} has 0 bytes instead of"),
    "shard longer": (lambda p: replace(p / SHARD, SHARDS[SHARD] + b"x"), f"{SHARD} has 201 bytes"),
    "shard of the same length": (lambda p: replace(p / SHARD, b"x" * 200), "match its checksum"),
    "shard missing": (lambda p: (p / SHARD).unlink(), f"{SHARD} is missing"),
    "folder of shards missing": (
        lambda p: shutil.rmtree(p / "deep"),
        "deep/shard_1.bin is missing",
    ),
    "shard renamed": (lambda p: (p / SHARD).rename(p / "x.bin"), f"{SHARD} is missing"),
    "shard is a symbolic link": (
        lambda p: move_away_and_link(p / SHARD, p.parent.parent / "elsewhere"),
        f"{SHARD} is no regular file",
    ),
    "shard is a dangling link": (
        lambda p: dangle(p / SHARD),
        f"{SHARD} is no regular file",
    ),
    "folder of shards is a symbolic link": (
        lambda p: move_away_and_link(p / "deep", p.parent.parent / "elsewhere"),
        "deep/shard_1.bin is missing",
    ),
    "shard is a folder": (lambda p: file_to_folder(p / SHARD), f"{SHARD} is missing"),
    "extra link": (lambda p: (p / "extra").symlink_to(p / SHARD), "extra is not sealed"),
    "extra file": (lambda p: replace(p / "extra", b""), "extra is not sealed"),
    "seal left behind": (
        lambda p: replace(p / "seal_rank_00000.json", b"{}"),
        "seal_rank_00000.json is not sealed",
    ),
    "manifest missing": (lambda p: (p / MANIFEST).unlink(), f"{MANIFEST} is missing or unreadable"),
    "manifest empty": (
        lambda p: replace(p / MANIFEST, b""),
        f"{MANIFEST} is missing or unreadable",
    ),
    "manifest truncated": (
        lambda p: replace(p / MANIFEST, (p / MANIFEST).read_bytes()[:-9]),
        f"{MANIFEST} is missing or unreadable",
    ),
    "manifest garbled": (lambda p: replace(p / MANIFEST, b"\xff\x00{}"), "missing or unreadable"),
    "manifest of endless brackets": (
        lambda p: replace(p / MANIFEST, b"[" * 100_000),
        f"{MANIFEST} is missing or unreadable",
    ),
    "manifest is a list": (lambda p: replace(p / MANIFEST, b"[1]\n"), "missing or unreadable"),
    "manifest without a body": (lambda p: replace(p / MANIFEST, b'{"body": 3}\n'), "unreadable"),
    "manifest is a folder": (lambda p: file_to_folder(p / MANIFEST), "missing or unreadable"),
    "manifest with a flipped letter": (
        lambda p: flip(p / MANIFEST, (p / MANIFEST).read_bytes().index(b"attempt")),
        f"{MANIFEST} does not match its own digest",
    ),
    "manifest with another blank": (
        lambda p: flip(p / MANIFEST, -1, 7),  # a line feed becomes a carriage return
        f"{MANIFEST} does not match its own digest",
    ),
    "manifest edited": (lambda p: forge(p, step=2, files={}), "does not match its own digest"),
    "manifest of another training step": (
        lambda p: take_manifest_of(p.parent / step_name(1), p),
        f"{MANIFEST} is of training step 1",
    ),
    "checkpoint is a file": (
        lambda p: folder_to(p, b"text"),
        f"{MANIFEST} is missing or unreadable",
    ),
    "checkpoint is an empty folder": (
        lambda p: folder_to(p, None),
        f"{MANIFEST} is missing or unreadable",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three good checkpoints, of steps 1, 2, 3."""
    for step in (1, 2, 3):
        publish(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def test_good_ones_verify_and_the_newest_is_picked(folder: Path) -> None:
    assert [verify(folder / step_name(step)) for step in (1, 2, 3)] == [[], [], []]
    picked = pick(folder)
    assert (picked.path, picked.step, picked.set_aside) == (folder / step_name(3), 3, [])
    assert not picked.lost


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_the_one_before_is_picked(name: str, folder: Path) -> None:
    damage, said = DAMAGE[name]
    newest = folder / step_name(3)
    damage(newest)
    problems = verify(newest)
    assert said in "; ".join(problems)
    picked = pick(folder)
    assert (picked.path, picked.step, picked.lost) == (folder / step_name(2), 2, False)
    assert picked.set_aside == [(newest.name, problems)]
    aside = folder / f"{newest.name}.bad1"
    assert aside.exists()
    assert not newest.exists()
    assert verify(aside) == problems  # set aside as it was, nothing of it deleted
    assert pick(folder).set_aside == []


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_of_all_is_lost_and_stays_lost(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    publish(folder, 1)
    only = publish(folder, 3, attempt=2)
    DAMAGE[name][0](only)
    shutil.rmtree(folder / step_name(1))
    assert pick(folder).lost
    assert pick(folder).lost  # not "from the start" at the second look either
    assert (folder / f"{only.name}.bad1").exists()


def test_newest_two_bad(folder: Path) -> None:
    for step in (2, 3):
        flip(folder / step_name(step) / SHARD, 0)
    picked = pick(folder)
    assert picked.step == 1
    assert [name for name, _ in picked.set_aside] == [step_name(3), step_name(2)]


def test_all_bad_is_lost_and_nothing_is_deleted(folder: Path) -> None:
    for step in (1, 2, 3):
        flip(folder / step_name(step) / SHARD, 0)
    picked = pick(folder)
    assert (picked.path, picked.step, picked.lost, len(picked.set_aside)) == (None, 0, True, 3)
    assert sorted(p.name for p in folder.iterdir()) == [f"{step_name(n)}.bad1" for n in (1, 2, 3)]


def test_file_times_do_not_matter(folder: Path) -> None:
    for step in (1, 2, 3):
        for path in [folder / step_name(step), *(folder / step_name(step)).rglob("*")]:
            os.utime(path, (10**9 - step, 10**9 - step))
    assert pick(folder).step == 3


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        publish(tmp_path, step)
    assert pick(tmp_path).step == 100_000_000


def test_set_aside_twice_keeps_both(folder: Path) -> None:
    for _ in range(2):
        flip(folder / step_name(3) / SHARD, 0)
        assert pick(folder).step == 2
        publish(folder, 3)
    assert {p.name for p in folder.glob("*.bad*")} == {f"{step_name(3)}.bad{n}" for n in (1, 2)}


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        ([], False),
        ([f"{step_name(5)}.a1.tmp"], False),
        ([f"{step_name(5)}.bad1"], True),
        ([f"{step_name(5)}.deleting"], True),
        (["notes", "step_5", "step_xxxxxxxx"], False),
    ],
)
def test_nothing_to_resume_from(names: list[str], lost: bool, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    picked = pick(tmp_path)
    assert (picked.path, picked.step, picked.lost) == (None, 0, lost)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)
    assert not pick(tmp_path / "none").lost


@contextlib.contextmanager
def ordinary_user(folder: Path) -> Iterator[None]:
    """Root can read everything; be nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (SHARD, f"{SHARD} cannot be read: Permission denied"),
        (MANIFEST, f"{MANIFEST} is missing or unreadable"),
        ("deep", "deep/shard_1.bin is missing"),
    ],
)
def test_unreadable_file_is_a_problem_and_the_one_before_is_picked(name: str, said: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # its parents can be entered by anybody
        folder = Path(place)
        publish(folder, 1)
        newest = publish(folder, 2)
        (newest / name).chmod(0)
        try:
            with ordinary_user(folder):
                assert verify(newest) == [said]
                assert pick(folder).step == 1
        finally:
            (folder / f"{newest.name}.bad1" / name).chmod(0o700)


@given(st.data())
def test_any_one_flipped_byte_is_never_accepted(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        publish(folder, 1)
        newest = publish(folder, 2, meta={"note": "é", "shape": [1, 2.5], "rate": 1e-9})
        files = [newest / MANIFEST, *(newest / name for name in SHARDS)]
        path = data.draw(st.sampled_from(files))
        position = data.draw(st.integers(0, path.stat().st_size - 1))
        flip(path, position, data.draw(st.integers(1, 255)))
        assert verify(newest)
        assert pick(folder).step == 1


def test_every_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    """Each byte to a blank, a carriage return and its neighbour: JSON takes many spellings."""
    one = publish(tmp_path, 1)
    good = (one / MANIFEST).read_bytes()
    accepted = []
    for position, byte in enumerate(good):
        for other in {0x20, 0x0D, 0x09, byte ^ 1, byte ^ 0x20} - {byte}:
            changed = bytearray(good)
            changed[position] = other
            (one / MANIFEST).write_bytes(changed)
            if read_manifest(one)[0] is not None:
                accepted.append((position, byte, other))
    assert accepted == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 30), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3))
def test_any_facts_of_the_recipe_are_published_and_verify(meta: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        one = publish(Path(place), 1, meta=meta)
        assert verify(one) == []
        body, _ = read_manifest(one)
        assert body is not None
        as_read = json.loads(json.dumps(meta))
        assert json.dumps(body["meta"], sort_keys=True) == json.dumps(as_read, sort_keys=True)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,4}(/[a-z]{1,3})?", fullmatch=True), st.binary()))
def test_any_files_verify_and_parts_share_the_reading(shards: dict[str, bytes]) -> None:
    folders = {name.partition("/")[0] for name in shards if "/" in name}
    shards = {name: content for name, content in shards.items() if name not in folders}
    with tempfile.TemporaryDirectory() as place:
        one = publish(Path(place), 1, shards)
        assert verify(one) == []
        if shards:
            victim = max(shards)
            (one / victim).write_bytes(shards[victim] + b"x")
            assert verify(one, contents=False)
            (one / victim).write_bytes(bytes(b ^ 1 for b in shards[victim]) or b"")
            found = [verify(one, part=(i, 3)) for i in range(3)]
            assert sum(map(bool, found)) == bool(shards[victim])


def test_names_and_sizes_only_is_blind_to_content(folder: Path) -> None:
    flip(folder / step_name(3) / SHARD, 0)
    assert verify(folder / step_name(3), contents=False) == []
    assert verify(folder / step_name(3)) != []


def steps(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize(
    ("keep", "bad", "left"),
    [
        (3, (), [3, 4, 5]),
        (1, (), [5]),
        (0, (), [5]),  # never the only good one
        (9, (), [1, 2, 3, 4, 5]),
        (2, (5,), [3, 4, 5]),  # a bad one fills no place and is not deleted
        (1, (5, 4), [3, 4, 5]),
        (1, (5, 4, 3, 2), [1, 2, 3, 4, 5]),
        (1, (1, 2), [1, 2, 5]),
        (1, (1, 2, 3, 4, 5), [1, 2, 3, 4, 5]),
    ],
)
def test_prune_keeps_the_newest_good_ones(
    keep: int, bad: tuple[int, ...], left: list[int], tmp_path: Path
) -> None:
    for step in range(1, 6):
        publish(tmp_path, step, keep=9)
    for step in bad:
        (tmp_path / step_name(step) / SHARD).write_bytes(b"short")
    prune(tmp_path, keep)
    assert steps(tmp_path) == [step_name(step) for step in left]


def test_publish_prunes(tmp_path: Path) -> None:
    for step in range(1, 6):
        publish(tmp_path, step, keep=2)
    assert steps(tmp_path) == [step_name(4), step_name(5)]


def test_discard_drafts_takes_only_those_of_earlier_attempts(tmp_path: Path) -> None:
    names = [f"{step_name(7)}.a{n}.tmp" for n in (1, 2, 10)]
    others = [step_name(5), f"{step_name(6)}.bad1", "notes.tmp"]
    for name in [*names, *others, f"{step_name(4)}.deleting"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    gone = discard_drafts(tmp_path, before_attempt=10)
    assert sorted(gone) == sorted([*names[:2], f"{step_name(4)}.deleting"])
    assert steps(tmp_path) == sorted([names[2], *others])
    assert discard_drafts(tmp_path / "none", 3) == []
