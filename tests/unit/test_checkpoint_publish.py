"""Writing a checkpoint: all ranks or none, one owner, and whatever is killed, never a half one."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from resume.checkpoint import (
    CheckpointError,
    Fenced,
    StorageError,
    digest_file,
    discard_drafts,
    pick,
    step_name,
    verify,
)
from tests.harness.checkpoints import SHARDS, draft, publish, write

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0


def script(text: str, *arguments: object) -> list[str]:
    """A small Python program that may import our packages; fast to start."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    return [sys.executable, "-S", "-c", start + text, *map(str, arguments)]


def own(folder: Path, token: int) -> None:
    (folder.parent / "owner.json").write_text(json.dumps({"token": token}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


# -- several ranks ---------------------------------------------------------------------------


def save_as_rank(folder: Path, rank: int, world_size: int) -> None:
    one = draft(folder, 5, rank=rank, world_size=world_size)
    one.seal(write(one, {f"shard_{rank}.bin": bytes([rank]) * 1000}))
    one.publish({"ranks": world_size}, timeout_s=LONG)


def assert_whole(folder: Path, world_size: int) -> None:
    one = folder / step_name(5)
    assert [p.name for p in folder.iterdir()] == [one.name]
    assert verify(one) == []
    wanted = {"manifest.json", *(f"shard_{rank}.bin" for rank in range(world_size))}
    assert {p.name for p in one.iterdir()} == wanted


def test_eight_ranks_in_threads(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda rank: save_as_rank(folder, rank, 8), range(8)))
    assert_whole(folder, 8)


RANK = """
from pathlib import Path
from resume.draft import CheckpointDraft
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
draft = CheckpointDraft(folder, 5, 1, rank, 3, 1, folder.parent / "owner.json")
draft.dir.mkdir(parents=True, exist_ok=True)
shard = draft.dir / f"shard_{rank}.bin"
shard.write_bytes(bytes([rank]) * 1000)
draft.seal([Path(shard.name)])
draft.publish(timeout_s=60)
"""


def test_ranks_in_processes_the_publisher_first(folder: Path) -> None:
    ranks = [subprocess.Popen(script(RANK, folder, rank)) for rank in range(3)]
    assert [rank.wait(LONG) for rank in ranks] == [0, 0, 0]
    assert_whole(folder, 3)


def test_only_rank_zero_publishes(folder: Path) -> None:
    one = draft(folder, 5, rank=1, world_size=2)
    one.seal(write(one))
    one.publish(timeout_s=0)
    assert one.dir.is_dir()
    assert not one.published.exists()


def test_missing_seal_is_an_error_that_names_the_ranks(folder: Path) -> None:
    one = draft(folder, 5, world_size=4)
    one.seal(write(one))
    draft(folder, 5, world_size=4, rank=2).seal([])
    with pytest.raises(CheckpointError, match=r"no seal from ranks \[1, 3\]"):
        one.publish(timeout_s=0.05)
    assert not one.published.exists()


def test_a_seal_counts_once_its_files_are_there_in_full(folder: Path) -> None:
    """Another node's file may be seen later than its seal."""
    one = draft(folder, 5)
    (shard,) = write(one, {"shard.bin": b"whole"})
    one.seal([shard])
    shard.write_bytes(b"who")
    with pytest.raises(CheckpointError, match=r"no seal from ranks \[0\]"):
        one.publish(timeout_s=0.05)
    shard.write_bytes(b"whole")
    one.publish(timeout_s=LONG)
    assert verify(one.published) == []


def test_a_rank_without_files_seals_nothing(folder: Path) -> None:
    one = draft(folder, 5)
    one.seal([])
    one.publish()
    assert verify(one.published) == []


@pytest.mark.parametrize("relative", [False, True])
def test_files_may_be_named_either_way(relative: bool, folder: Path) -> None:
    one = draft(folder, 5)
    files = write(one)
    one.seal([path.relative_to(one.dir) for path in files] if relative else files)
    one.publish()
    assert pick(folder).step == 5


# -- one owner, written once -----------------------------------------------------------------


@pytest.mark.parametrize(("owner", "mine", "may"), [(1, 1, True), (2, 3, True), (3, 2, False)])
def test_an_older_token_cannot_publish(owner: int, mine: int, may: bool, folder: Path) -> None:
    folder.mkdir()
    own(folder, owner)
    one = draft(folder, 5, token=mine)
    one.seal(write(one))
    if may:
        one.publish()
    else:
        with pytest.raises(Fenced, match=f"owned by token {owner}, this attempt has {mine}"):
            one.publish()
    assert one.published.exists() is may


def test_a_new_owner_while_the_seals_are_awaited_fences(folder: Path) -> None:
    folder.mkdir()
    own(folder, 1)
    one = draft(folder, 5, world_size=2)
    one.seal(write(one))
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(one.publish, timeout_s=LONG)
        own(folder, 2)
        draft(folder, 5, rank=1, world_size=2).seal([])
        with pytest.raises(Fenced):
            publishing.result(LONG)
    assert not one.published.exists()


def test_what_is_published_is_never_written_again(folder: Path) -> None:
    first = publish(folder, 5, {"shard.bin": b"first"}, attempt=1)
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns, p.read_bytes()) for p in first.iterdir()}
    publish(folder, 5, {"shard.bin": b"second"}, attempt=2)
    assert {
        p: (p.stat().st_ino, p.stat().st_mtime_ns, p.read_bytes()) for p in first.iterdir()
    } == before
    assert [p.name for p in folder.iterdir()] == [first.name]  # the draft is gone


def test_a_draft_is_not_discarded_under_a_rank_that_still_writes(folder: Path) -> None:
    publish(folder, 5, attempt=1)
    zero = draft(folder, 5, attempt=2, world_size=2)
    one = draft(folder, 5, attempt=2, world_size=2, rank=1)
    zero.seal([])
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(zero.publish, timeout_s=LONG)
        time.sleep(0.1)  # rank 0 is ahead
        one.seal(write(one, {"late.bin": b"x"}))
        publishing.result(LONG)
    assert not zero.dir.exists()
    assert verify(zero.published) == []


def test_facts_that_are_no_json_are_refused_before_anything_is_lost(folder: Path) -> None:
    one = draft(folder, 5)
    one.seal(write(one))
    with pytest.raises(TypeError):
        one.publish({"what": object()})
    one.publish({"what": "text"})
    assert verify(one.published) == []


# -- storage that refuses --------------------------------------------------------------------


def test_sealing_a_file_that_is_not_there_is_a_storage_error(folder: Path) -> None:
    with pytest.raises(StorageError, match=r"step_00000005.a1.tmp: .*No such file"):
        draft(folder, 5).seal([Path("none.bin")])


SEAL = """
from pathlib import Path
from resume.checkpoint import StorageError
from resume.draft import CheckpointDraft
import resource
folder = Path(sys.argv[1])
draft = CheckpointDraft(folder, 5, 1, 0, 1, 1, folder.parent / "owner.json")
draft.dir.mkdir(parents=True)
with (draft.dir / "shard.bin").open("wb", buffering=0) as shard:
    if sys.argv[2] == "fill":
        try:
            while shard.write(b"x" * 4096):
                pass
        except OSError as error:
            print(error.strerror)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
for act in (lambda: draft.seal([Path("shard.bin")]), draft.publish):
    try:
        act()
        print("accepted")
    except StorageError as error:
        print(error)
        break
print("published", draft.published.exists())
"""


def test_seal_beyond_the_file_size_limit_is_a_storage_error(folder: Path) -> None:
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run(
        script(SEAL, folder, "limit"), capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.stdout.splitlines() == [
        "checkpoint step_00000005.a1.tmp: [Errno 27] File too large",
        "published False",
    ], done.stderr


@pytest.mark.may_skip("needs the right to mount a file system of its own")
def test_seal_on_a_full_disk_is_a_storage_error(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    sandbox = [*unshare, "bash", "-c", mount, "bash", str(tmp_path)]
    if subprocess.run([*sandbox, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private mount here")
    done = subprocess.run(
        [*sandbox, *script(SEAL, tmp_path / "checkpoints", "fill")],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "No space left on device",
        "checkpoint step_00000005.a1.tmp: [Errno 28] No space left on device",
        "published False",
    ], done.stderr


# -- kill -9 ---------------------------------------------------------------------------------

PUBLISHER = """
from pathlib import Path
from resume.draft import CheckpointDraft
folder, attempt, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
while True:
    step += 1
    draft = CheckpointDraft(folder, step, attempt, 0, 1, 1, folder.parent / "owner.json", keep=2)
    draft.dir.mkdir(parents=True, exist_ok=True)
    for n in range(3):
        (draft.dir / f"shard_{n}.bin").write_bytes(bytes([step % 256]) * 50_000)
    draft.seal([Path(f"shard_{n}.bin") for n in range(3)])
    draft.publish()
    print(step, flush=True)
"""


def assert_no_half_checkpoint(folder: Path) -> int:
    """Everything under a published name verifies; returns the newest step."""
    published = [p for p in folder.iterdir() if re.fullmatch(r"step_\d+", p.name)]
    assert {p.name: verify(p) for p in published} == {p.name: [] for p in published}
    picked = pick(folder)
    assert picked.set_aside == []
    return picked.step


def test_publisher_killed_at_random_moments(folder: Path) -> None:
    folder.mkdir(parents=True)
    step, dice = 0, random.Random(7)
    for attempt in range(1, 16):
        process = subprocess.Popen(
            script(PUBLISHER, folder, attempt, step), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout as said:
            assert said.readline() == f"{step + 1}\n"
            time.sleep(dice.uniform(0, 0.05))
            process.kill()
            told = [step + 1, *map(int, said.read().split())]
        process.wait()
        newest = assert_no_half_checkpoint(folder)
        assert newest in (told[-1], told[-1] + 1)  # what was said to be published is there
        step = newest
        discard_drafts(folder, attempt + 1)
        assert not list(folder.glob("*.tmp"))
        assert not list(folder.glob("*.deleting"))


STEPWISE = """
import itertools, os, shutil, signal
from pathlib import Path
from resume.checkpoint import discard_drafts, pick, verify
from resume.draft import CheckpointDraft
root = Path(sys.argv[1])

def publish(folder, step, attempt):
    draft = CheckpointDraft(folder, step, attempt, 0, 1, 1, folder.parent / "owner.json", keep=2)
    draft.dir.mkdir(parents=True, exist_ok=True)
    for n in range(2):
        (draft.dir / f"shard_{n}.bin").write_bytes(bytes([step]) * 100)
    draft.seal([Path(f"shard_{n}.bin") for n in range(2)])
    draft.publish()

template = root / "template"
for step in (1, 2):
    publish(template, step, 1)

def die_at(number):
    count = itertools.count(1)
    def hook(event, _arguments):
        if event.split(".")[0] in ("open", "os", "shutil", "pathlib") and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for number in itertools.count(1):
    folder = root / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    pid = os.fork()
    if pid == 0:
        die_at(number)
        publish(folder, 3, 2)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    bad = {p.name: verify(p) for p in folder.glob("step_????????") if verify(p)}
    picked = pick(folder)
    if bad or picked.set_aside or picked.step not in (2, 3):
        print("killed at", number, bad, picked)
    discard_drafts(folder, 3)
    left = sorted(p.name for p in folder.iterdir())
    if len(left) < 2 or any("." in name for name in left):
        print("killed at", number, "leaves", left)
    if status == 0:
        print("ended", number > 20)
        break
"""


def test_publisher_and_prune_killed_before_every_file_operation(tmp_path: Path) -> None:
    """The audit hook counts opens, renames and removals; the n-th try dies before the n-th one."""
    done = subprocess.run(
        script(STEPWISE, tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("ended True\n", "")


def test_a_half_deleted_checkpoint_never_looks_published(folder: Path) -> None:
    for step in (1, 2):
        publish(folder, step)
    doomed = folder / f"{step_name(1)}.deleting"
    (folder / step_name(1)).rename(doomed)  # killed between rename and rmtree
    (doomed / next(iter(SHARDS))).unlink()
    assert pick(folder).step == 2
    assert discard_drafts(folder, 1) == [doomed.name]


def test_seals_from_many_threads_of_one_process_do_not_mix(folder: Path) -> None:
    """Checkpoints of several training steps in flight at once, as asynchronous saving does."""
    barrier = threading.Barrier(4)

    def save(step: int) -> Path:
        barrier.wait()
        return publish(folder, step, {"shard.bin": bytes([step]) * 9999}, keep=9)

    with ThreadPoolExecutor(4) as pool:
        for path in pool.map(save, range(1, 5)):
            assert verify(path) == []


def test_python_m_resume_save(tmp_path: Path) -> None:
    def save(*words: str, **more: str) -> tuple[int, str]:
        beats = tmp_path / "beats"
        beats.mkdir(exist_ok=True)
        env = {
            **os.environ, "PYTHONPATH": str(ROOT), "MUSTER_RUN_DIR": str(tmp_path / "run"),
            "MUSTER_TOKEN": "1", "MUSTER_BEAT_DIR": str(beats), **more,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "resume", *words],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LONG, check=False,
        )  # fmt: skip
        assert list(beats.iterdir()) == []  # signals are for the trainer, not for this process
        return done.returncode, done.stderr

    (tmp_path / "a b").write_text("1")
    assert save("save", "5", "a b") == (0, "")
    assert verify(tmp_path / "run/checkpoints/step_00000005") == []
    assert not (tmp_path / "a b").exists()
    usage = "usage: python3 -m resume save STEP FILE...\n"
    assert [save(*w) for w in ([], ["save", "x", "f"], ["save", "5"])] == [(64, usage)] * 3
    missing = "resume save: none: no such file. Fix: write it first\n"
    assert save("save", "6", "none") == (65, missing)
    (tmp_path / "c").write_text("2")
    own(tmp_path / "run" / "checkpoints", 2)
    code, said = save("save", "7", "c")
    assert (code, said.count("\n"), "owned by token 2" in said) == (75, 1, True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    (tmp_path / "c").write_text("2")
    code, said = save("save", "8", "c")
    assert (code, said.count("\n")) == (74, 1)


ASKED_TO_LEAVE = """
import os, signal, sys
from resume import __main__ as program
real = program._save
def save(*words):
    for number in (signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    real(*words)
program._save = save
sys.exit(program.main(["save", "5", "f"]))
"""


def test_python_m_resume_save_is_not_ended_by_who_is_preempted(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MUSTER_RUN_DIR": str(tmp_path / "run"),
           "MUSTER_TOKEN": "1"}  # fmt: skip
    words = [sys.executable, "-c", ASKED_TO_LEAVE]
    done = subprocess.run(words, cwd=tmp_path, env=env, timeout=LONG, check=False)
    assert done.returncode == 0
    assert verify(tmp_path / "run/checkpoints/step_00000005") == []


def test_file_that_was_hashed_while_it_was_written_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = draft(tmp_path / "checkpoints", 5)
    with one.open("shard_0.bin") as file:
        file.write(b"0123456789" * 1000)
    (one.dir / "small").write_bytes(b"x")
    read: list[str] = []

    def digest(path: Path) -> str:
        read.append(path.name)
        return digest_file(path)

    monkeypatch.setattr("resume.draft.digest_file", digest)
    one.seal([Path("shard_0.bin"), Path("small")])
    one.publish(None)
    assert read == ["small"]
    assert verify(one.published) == []


def test_hashed_file_that_was_written_to_afterwards_is_read(tmp_path: Path) -> None:
    one = draft(tmp_path / "checkpoints", 5)
    with one.open("shard_0.bin") as file:
        file.write(b"0123456789")
    with (one.dir / "shard_0.bin").open("r+b") as again:
        again.write(b"other")
    os.utime(one.dir / "shard_0.bin", ns=(1, 1))  # sure to differ, however coarse the clock
    one.seal([Path("shard_0.bin")])
    one.publish()
    assert verify(one.published) == []
