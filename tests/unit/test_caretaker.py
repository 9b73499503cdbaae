"""Rounds over published checkpoints: all is read, bad ones are said, nothing good is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.recipe import Checkpoints
from resume import checkpoint, journal
from resume.caretaker import Caretaker
from resume.checkpoint import pick, step_name, verify
from tests.harness.checkpoints import SHARDS, publish

ROOT = Path(__file__).resolve().parents[2]
SHARD = next(iter(SHARDS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def a_round(
    run_dir: Path, keep: int = 3, every: int = 0, verified: set[int] | None = None, token: int = 1
) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    rules = Checkpoints(keep=keep, keep_every=every)
    one = Caretaker(run_dir, token, rules, verified or set(), said.append, patience_s=0)
    one.round()
    for fact in said:
        fact.pop("took_s", None)
    return said


def good(step: int) -> dict[str, Any]:
    return {"verified": step_name(step), "tier": "shared", "attempt": 1}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def test_all_are_read_the_newest_first_and_then_pruned(folder: Path) -> None:
    for step in (1, 2, 3):
        publish(folder, step)
    gone = {"pruned": [step_name(1)], "tier": "shared"}
    assert a_round(folder.parent, keep=2) == [good(3), good(2), gone]  # 1 is not worth the reading
    assert sorted(p.name for p in folder.iterdir()) == [step_name(2), step_name(3)]
    assert a_round(folder.parent, keep=2, verified={2, 3}) == []


def test_a_bad_one_is_set_aside_and_takes_no_place(folder: Path) -> None:
    for step in (1, 2, 3):
        publish(folder, step)
    flip(folder / step_name(3) / SHARD)
    first, *rest = a_round(folder.parent, keep=2)
    assert first["set_aside"] == step_name(3)
    assert first["problems"] == [f"{SHARD} does not match its checksum"]
    assert rest == [good(2), good(1)]
    assert sorted(p.name for p in folder.iterdir()) == [
        step_name(1), step_name(2), f"{step_name(3)}.bad1",
    ]  # fmt: skip


def test_the_only_verified_one_is_never_deleted(folder: Path) -> None:
    for step in (1, 2, 3):
        publish(folder, step)
        if step > 1:
            flip(folder / step_name(step) / SHARD)
    a_round(folder.parent, keep=1)
    assert (folder / step_name(1)).is_dir()
    assert pick(folder).step == 1


def test_every_nth_stays(folder: Path) -> None:
    for step in range(1, 8):
        publish(folder, step)
    a_round(folder.parent, keep=1, every=3)
    left = [p.name for p in folder.iterdir()]
    assert sorted(left) == [step_name(step) for step in (3, 6, 7)]


def test_a_caretaker_of_an_older_owner_changes_nothing(folder: Path) -> None:
    for step in (1, 2, 3):
        publish(folder, step)
    flip(folder / step_name(3) / SHARD)
    (folder.parent / "owner.json").write_text('{"token": 2, "job": "7"}')
    assert a_round(folder.parent, keep=1) == [good(2)]
    assert sorted(p.name for p in folder.iterdir()) == [step_name(n) for n in (1, 2, 3)]


def test_storage_that_is_away_condemns_no_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, 1)

    def stale(*_: Any, **__: Any) -> str:
        raise OSError(116, os.strerror(116))

    monkeypatch.setattr(checkpoint, "digest_file", stale)
    with pytest.raises(OSError, match="Stale"):
        a_round(folder.parent)
    assert [p.name for p in folder.iterdir()] == [step_name(1)]


def test_files_that_another_node_sees_later_are_waited_for(folder: Path) -> None:
    """NFS: the name of the folder is there, its files follow."""
    newest = publish(folder, 2)
    publish(folder, 1)
    hidden = folder.parent / "hidden"
    (newest / SHARD).rename(hidden)

    def show() -> None:
        time.sleep(0.2)
        hidden.rename(newest / SHARD)

    late = threading.Thread(target=show)
    late.start()
    picked = pick(folder, patience_s=60)
    late.join()
    assert (picked.step, picked.set_aside) == (2, [])


# -- as a process, killed at any moment ---------------------------------------------------------


def caretake(run_dir: Path, *words: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "muster", "caretake", str(run_dir), "--token", "1", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)


def test_the_process_says_what_it_did_and_reads_what_it_knows_from_the_journal(
    folder: Path,
) -> None:
    for step in (1, 2):
        publish(folder, step)
    notes = journal.Journal(folder.parent / "journal.jsonl", 1)
    notes.append("checkpoint_verified", checkpoint=step_name(2), tier="shared")
    out, _ = caretake(folder.parent, "--keep", "3", "--keep-every", "0").communicate(timeout=60)
    facts = [json.loads(line) for line in out.splitlines()]
    assert [fact["verified"] for fact in facts] == [step_name(1)]


KILLED = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from muster.recipe import Checkpoints
from resume.caretaker import Caretaker
from resume.checkpoint import discard_drafts, pick, verify
root = Path(sys.argv[1])

def die_at(number):
    count = itertools.count(1)
    def hook(event, _arguments):
        if event.split(".")[0] in ("open", "os", "shutil", "pathlib") and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for number in itertools.count(1):
    run_dir = root / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(root / "template", run_dir)
    pid = os.fork()
    if pid == 0:
        die_at(number)
        Caretaker(run_dir, 1, Checkpoints(keep=1), set(), lambda fact: None, 0).round()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    folder = run_dir / "checkpoints"
    bad = {p.name: verify(p) for p in folder.glob("step_????????") if verify(p)}
    picked = pick(folder)
    names = sorted(p.name for p in folder.iterdir())
    if picked.step != 2 or set(bad) - {"step_00000003"}:
        print("killed at", number, bad, picked)
    if "step_00000003.bad1" not in names:
        print("killed at", number, "the bad one is gone:", names)
    discard_drafts(folder, 1)
    if status == 0:
        print("ended", number > 20, names)
        break
"""


def test_killed_before_every_file_operation_it_loses_nothing(tmp_path: Path) -> None:
    template = tmp_path / "template" / "checkpoints"
    for step in (1, 2, 3):
        publish(template, step)
    flip(template / step_name(3) / SHARD)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (
        "ended True ['step_00000002', 'step_00000003.bad1']\n", "",
    )  # fmt: skip


def test_a_killed_process_leaves_the_rest_for_the_next(folder: Path) -> None:
    for step in range(1, 6):
        publish(folder, step, {"shard.bin": bytes([step]) * 3_000_000})
    one = caretake(folder.parent, "--keep", "1", "--keep-every", "0")
    one.send_signal(signal.SIGKILL)
    one.communicate(timeout=60)
    out, _ = caretake(folder.parent, "--keep", "1", "--keep-every", "0").communicate(timeout=60)
    assert json.loads(out.splitlines()[0])["verified"] == step_name(5)
    assert [p.name for p in folder.glob("step_????????")] == [step_name(5)]
    assert verify(folder / step_name(5)) == []
