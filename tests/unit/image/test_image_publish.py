"""A file that many ask for at once: made by one, whole or not there, whoever is killed and when."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.errors import CreateError, DataError, StorageError, TemporaryError
from muster.image.publish import Patience, publish, require_free
from muster.image.squash import require_whole
from tests.unit.image.squash_files import write_squash

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
QUICK = Patience(beat_s=0.01, silent_s=0.05, poll_s=0.001, limit_s=60)
LONG = 600.0


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    return tmp_path / "local"


def test_made_once_and_nothing_else_is_left(shared: Path, local: Path) -> None:
    target = shared / "a.sqsh"
    assert publish(target, write_squash, require_whole, local, QUICK)
    assert not publish(target, write_squash, require_whole, local, QUICK)
    assert [path.name for path in shared.iterdir()] == ["a.sqsh"]
    assert list(local.iterdir()) == []


ASKER = """
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:2]
from muster.image.publish import Patience, publish
from muster.image.squash import require_whole
from tests.unit.image.squash_files import write_squash
shared, local, me = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
(shared / f"asker.{me}").touch()
def make(made):
    while len(list(shared.glob("asker.*"))) < 8:  # all have asked before it is there
        time.sleep(0.01)
    with (shared / "makers").open("a") as file:
        file.write(me + "\\n")
    if sys.argv[5:] and len((shared / "makers").read_text().splitlines()) == 1:
        write_squash(made, missing=1000)
        os.kill(os.getpid(), signal.SIGKILL)
    write_squash(made, 1 << 20)
patience = Patience(beat_s=0.05, silent_s=2.0 if sys.argv[5:] else 600.0, poll_s=0.01)
publish(shared / "a.sqsh", make, require_whole, local, patience)
require_whole(shared / "a.sqsh")
"""


def test_eight_at_once_are_one_maker_and_eight_users(shared: Path, local: Path) -> None:
    words = [sys.executable, "-c", ASKER, str(ROOT), str(shared), str(local)]
    askers = [subprocess.Popen([*words, str(number)]) for number in range(8)]
    assert [asker.wait(LONG) for asker in askers] == [0] * 8
    assert len((shared / "makers").read_text().splitlines()) == 1
    left = {path.name for path in shared.iterdir() if not path.name.startswith("asker.")}
    assert left == {"a.sqsh", "makers"}
    assert list(local.iterdir()) == []


def test_of_eight_the_maker_is_killed_half_way_and_seven_have_it(shared: Path, local: Path) -> None:
    words = [sys.executable, "-c", ASKER, str(ROOT), str(shared), str(local)]
    askers = [subprocess.Popen([*words, str(number), "die"]) for number in range(8)]
    assert sorted(asker.wait(LONG) for asker in askers) == [-signal.SIGKILL, *[0] * 7]
    # A slow machine may take a living maker for dead: then two make it, and it is whole as well.
    assert len((shared / "makers").read_text().splitlines()) >= 2
    left = {path.name for path in shared.iterdir() if not path.name.startswith("asker.")}
    assert left == {"a.sqsh", "makers"}


def test_a_maker_that_is_killed_at_any_line_leaves_nothing_half(shared: Path, local: Path) -> None:
    program = [sys.executable, str(HERE / "killed_makers.py"), str(shared), str(local)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(
        r"(\d+) deaths, (\d+) after the name was given, local: \[\]\n", done.stdout
    )
    assert found, done.stdout
    assert int(found[1]) > 60
    assert int(found[2]) > 5


def test_what_is_there_and_not_whole_is_said_and_not_replaced(shared: Path, local: Path) -> None:
    target = shared / "a.sqsh"
    write_squash(target, missing=1)
    with pytest.raises(DataError, match="has 4999 of 5000 bytes"):
        publish(target, write_squash, require_whole, local, QUICK)
    assert target.stat().st_size == 4999


def test_what_was_made_and_is_not_whole_gets_no_name(shared: Path, local: Path) -> None:
    def make(made: Path) -> None:
        write_squash(made, missing=4000)

    with pytest.raises(DataError):
        publish(shared / "a.sqsh", make, require_whole, local, QUICK)
    assert list(shared.iterdir()) == list(local.iterdir()) == []


def test_a_file_that_came_meanwhile_is_not_replaced(shared: Path, local: Path) -> None:
    target = shared / "a.sqsh"

    def make(made: Path) -> None:
        write_squash(made)
        write_squash(target, 6000)  # by a maker who was believed dead

    assert publish(target, make, require_whole, local, QUICK)
    assert target.stat().st_size == 6000


def test_storage_without_hard_links(
    shared: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", link)
    assert publish(shared / "a.sqsh", write_squash, require_whole, local, QUICK)
    assert [path.name for path in shared.iterdir()] == ["a.sqsh"]


def test_storage_that_fails_leaves_nothing(
    shared: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="No space left"):
        publish(shared / "a.sqsh", write_squash, require_whole, local, QUICK)
    assert list(shared.iterdir()) == list(local.iterdir()) == []


def test_a_maker_shows_life(shared: Path, local: Path) -> None:
    def make(made: Path) -> None:
        (lock,) = shared.glob(".a.sqsh.lock.*")
        os.utime(lock, (1, 1))
        end = time.monotonic() + LONG
        while lock.stat().st_mtime == 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        write_squash(made)

    assert publish(shared / "a.sqsh", make, require_whole, local, QUICK)


def test_waiting_has_an_end(shared: Path, local: Path) -> None:
    (shared / ".a.sqsh.lock.1").touch()
    patience = Patience(beat_s=1, silent_s=1000, poll_s=0.001, limit_s=0.01)
    with pytest.raises(TemporaryError, match="another node"):
        publish(shared / "a.sqsh", write_squash, require_whole, local, patience)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dangling", "is a link that leads nowhere"),
        ("loop", "Too many levels of symbolic links"),
        ("fifo", "is no ordinary file"),
        ("folder", "is no ordinary file"),
        ("..", "is no ordinary file"),
        ("no/..", "is no folder"),
        ("/", "is no ordinary file"),
        ("fifo/a.sqsh", "Not a directory"),
        ("x" * 217, "File name too long"),
        ("x" * 256, "File name too long"),
        ("x" * 5000, "File name too long"),
        ("/".join(["x" * 100] * 60), "File name too long"),
    ],
    ids=lambda text: text[:20],
)
def test_a_name_that_no_file_can_get_is_refused_before_it_is_made(
    shared: Path, local: Path, name: str, said: str
) -> None:
    (shared / "dangling").symlink_to("gone")
    (shared / "loop").symlink_to("loop")
    (shared / "folder").mkdir()
    os.mkfifo(shared / "fifo")
    before = sorted(shared.iterdir())

    def make(_: Path) -> None:
        raise AssertionError

    with pytest.raises(CreateError, match=said):
        publish(shared / name, make, require_whole, local, QUICK)
    assert sorted(shared.iterdir()) == before


def test_the_longest_name_is_published(shared: Path, local: Path) -> None:
    assert publish(shared / ("x" * 216), write_squash, require_whole, local, QUICK)


@pytest.mark.parametrize("name", ["[ab]*.sqsh", "a", "*"])
def test_only_the_parts_of_the_same_name_go(shared: Path, local: Path, name: str) -> None:
    left, theirs = f".{name}.{'0' * 32}.part", f".a.sqsh.{'1' * 32}.part"
    for part in (left, theirs):
        (shared / part).touch()
    assert publish(shared / name, write_squash, require_whole, local, QUICK)
    assert sorted(path.name for path in shared.iterdir()) == sorted([name, theirs])


def test_only_a_file_is_to_be_removed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    os.mkfifo("fifo")
    Path("-x.sqsh").write_text("no")
    with pytest.raises(DataError, match=f"Fix: rm {shared}/-x.sqsh, then make it again"):
        require_whole(Path("-x.sqsh"))
    for name in ("/", "fifo", "..", "gone", "x" * 5000):
        with pytest.raises(DataError, match=r"Fix: name a \.sqsh file that you can read"):
            require_whole(Path(name))


def test_no_folder_and_no_space(shared: Path, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CreateError, match="mkdir -p"):
        publish(shared / "no" / "a.sqsh", write_squash, require_whole, local, QUICK)
    for temp in ("no", "x" * 256, "x" * 5000):
        with pytest.raises(CreateError, match="--temp"):
            publish(shared / "a.sqsh", write_squash, require_whole, local / temp, QUICK)
    free = shutil.disk_usage(shared)._replace(free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    require_free(shared, 1 << 30, "x")
    with pytest.raises(CreateError, match=r"1.0 GiB free, 2.0 GiB needed"):
        require_free(shared, 2 << 30, "x")


def test_what_the_killed_left_on_local_disk_goes(shared: Path, local: Path) -> None:
    dead = local / f"muster-image-{os.uname().nodename}-{2**22 + 1}-x"
    alive = local / f"muster-image-{os.uname().nodename}-{os.getpid()}-x"
    other = local / "muster-image-another-host-1-x"
    for folder in (dead, alive, other):
        folder.mkdir()
    publish(shared / "a.sqsh", write_squash, require_whole, local, QUICK)
    assert sorted(local.iterdir()) == sorted([alive, other])
