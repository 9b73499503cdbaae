"""What a recipe sees of muster: `resume.Run`, with a supervisor and without one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import resume
import resume.run
from resume.durable import read_lines

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """No variable of a job, no flag and no signal handler of another test."""
    for name in os.environ:
        if name.startswith("MUSTER_") or name in NAMES:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resume.run, "_leave", False)
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **variables: str) -> resume.Run:
    (tmp_path / "beats").mkdir(exist_ok=True)
    whole = {
        "MUSTER_RUN_DIR": str(tmp_path / "run"), "MUSTER_RECIPE_DIR": str(tmp_path / "recipe"),
        "MUSTER_ATTEMPT": "3", "MUSTER_TOKEN": "2", "MUSTER_RESUME": "",
        "MUSTER_BEAT_DIR": str(tmp_path / "beats"), "RANK": "0", "WORLD_SIZE": "1", **variables,
    }  # fmt: skip
    for name, value in whole.items():
        monkeypatch.setenv(name, value)
    return resume.Run.from_env()


def test_the_environment_of_the_contract(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = make(
        monkeypatch, tmp_path,
        RANK="5", LOCAL_RANK="1", WORLD_SIZE="8", MUSTER_RESUME=str(tmp_path / "step_00000007"),
    )  # fmt: skip
    assert (run.dir, run.recipe_dir) == (tmp_path / "run", tmp_path / "recipe")
    assert (run.attempt, run.token, run.rank, run.local_rank, run.world_size) == (3, 2, 5, 1, 8)
    assert run.resume == tmp_path / "step_00000007"
    assert run.checkpoints_dir == tmp_path / "run" / "checkpoints"
    beat = json.loads((tmp_path / "beats" / "rank_5.json").read_text())
    assert beat == {"pid": os.getpid(), "phase": "setup", "step": None}
    with pytest.raises(AttributeError):
        run.rank = 0  # type: ignore[misc]


@pytest.mark.parametrize("empty", [False, True])
def test_by_hand(empty: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MUSTER_RUN_DIR", "MUSTER_ATTEMPT", "MUSTER_RESUME", "MUSTER_BEAT_DIR", *NAMES):
        if empty:
            monkeypatch.setenv(name, "")
    run = resume.Run.from_env()
    assert run == resume.Run(
        dir=tmp_path / "runs" / "by_hand", recipe_dir=tmp_path, resume=None,
        attempt=1, token=0, rank=0, local_rank=0, world_size=1, beat_dir=None,
    )  # fmt: skip
    run.beat("step", 1)
    run.log_metrics({"step": 1})
    draft = run.begin_checkpoint(1)
    (draft.dir / "shard").write_text("x")
    draft.seal([Path("shard")])
    draft.publish()
    assert run.wait_published(1, 0)
    run.done(1, {})
    assert sorted(p.name for p in run.dir.iterdir()) == ["DONE", "checkpoints", "metrics.jsonl"]


def test_sigusr2_sets_the_flag_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make(monkeypatch, tmp_path)
    asked = []
    for _ in range(3):
        asked.append(run.leave_requested)
        os.kill(os.getpid(), signal.SIGUSR2)
    assert asked == [False, True, True]


def test_the_signal_is_armed_before_the_first_beat_tells_the_process_number(
    tmp_path: Path,
) -> None:
    """Whoever sees the beat may send SIGUSR2, which ends a process that has no handler."""
    text = (
        "import os, signal, resume\nfrom pathlib import Path\nseen = []\n"
        "sent = lambda *a: seen.append(signal.getsignal(signal.SIGUSR2))\n"
        "resume.Run.beat = sent\nresume.Run.from_env()\nprint(callable(seen[0]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_reader_of_beats_never_sees_a_half_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, over = make(monkeypatch, tmp_path), threading.Event()

    def beat() -> None:
        for step in range(1500):
            run.beat("step" if step % 2 else "save", step)
        over.set()

    writer = threading.Thread(target=beat)
    writer.start()
    path, seen = tmp_path / "beats" / "rank_0.json", []
    while not over.is_set():
        seen.append(json.loads(path.read_text())["step"])
    writer.join()
    numbers = [step for step in seen if step is not None]
    assert numbers == sorted(numbers)


def test_a_beat_that_cannot_be_shown_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make(monkeypatch, tmp_path)
    shutil.rmtree(tmp_path / "beats")
    run.beat("step", 1)


@pytest.mark.parametrize(("rank", "lines"), [("0", 2), ("1", 0)])
def test_only_rank_zero_logs_and_is_done(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make(monkeypatch, tmp_path, RANK=rank, WORLD_SIZE="2")
    for step in (1, 2):
        run.log_metrics({"step": step, "loss": 0.1 + 0.2})
    run.done(2, {"final_loss": 1.5})
    logged = read_lines(run.dir / "metrics.jsonl")
    assert [(m["step"], m["loss"], m["attempt"]) for m in logged] == [
        (1, 0.1 + 0.2, 3),
        (2, 0.1 + 0.2, 3),
    ][:lines]
    assert all(isinstance(m["time"], float) for m in logged)
    assert (run.dir / "DONE").exists() is (rank == "0")
    if rank == "0":
        assert json.loads((run.dir / "DONE").read_text()) == {"step": 2, "final_loss": 1.5}


def test_a_torn_line_of_a_dead_attempt_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make(monkeypatch, tmp_path)
    (run.dir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    run.log_metrics({"step": 2})
    assert [m["step"] for m in read_lines(run.dir / "metrics.jsonl")] == [1, 2]


def test_an_older_owner_cannot_say_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = make(monkeypatch, tmp_path)
    run.owner_file.write_text('{"token": 3}')
    with pytest.raises(resume.Fenced):
        run.done(2, {})
    assert not (run.dir / "DONE").exists()
    run.owner_file.write_text('{"token": 2}')
    run.done(2, {})
    assert (run.dir / "DONE").exists()


def test_every_rank_gets_the_same_draft_of_its_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drafts = [
        make(monkeypatch, tmp_path, RANK=rank, WORLD_SIZE="2").begin_checkpoint(12)
        for rank in ("0", "1")
    ]
    assert {d.dir for d in drafts} == {tmp_path / "run/checkpoints/step_00000012.a3.tmp"}
    assert drafts[0].dir.is_dir()


def test_draft_that_cannot_be_made_is_a_storage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make(monkeypatch, tmp_path)
    (run.dir / "checkpoints").write_text("in the way")
    with pytest.raises(resume.StorageError, match="step_00000001"):
        run.begin_checkpoint(1)


def test_wait_published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = make(monkeypatch, tmp_path)
    assert not run.wait_published(1, 0.05)
    (run.checkpoints_dir / "step_00000001").mkdir(parents=True)
    assert run.wait_published(1, 60)


PART_FOR_RECIPES = (
    *("__init__.py", "run.py", "checkpoint.py", "draft.py", "durable.py"),
    *("hashed_file.py", "preflight.py", "retention.py", "skips.py"),
)


def test_a_few_files_and_the_standard_library_are_enough(tmp_path: Path) -> None:
    """In a container there is the image's Python and the folder `resume`, nothing of a host."""
    (tmp_path / "resume").mkdir()
    for name in PART_FOR_RECIPES:
        shutil.copy(ROOT / "resume" / name, tmp_path / "resume" / name)
    text = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import resume\nfrom pathlib import Path\n"
        "run = resume.Run.from_env()\ndraft = run.begin_checkpoint(4)\n"
        "(draft.dir / 'x').write_text('y')\ndraft.seal([Path('x')])\ndraft.publish()\n"
        "print(resume.pick(run.checkpoints_dir).step, resume.verify(draft.published))\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('muster', 'yaml', 'resume')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", text], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "4 []",
        str(sorted(["resume", *(f"resume.{name[:-3]}" for name in PART_FOR_RECIPES[1:])])),
    ]


def test_all_that_is_exported_is_there() -> None:
    assert all(hasattr(resume, name) for name in resume.__all__)
