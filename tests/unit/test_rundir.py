"""RUN_DIR: its place, its proof that it can be written, and the snapshot that a run trains from."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.errors import CreateError, StorageError
from resume import lease, rundir
from resume.rundir import beat_dir, default_run_dir, prepare, snapshot

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("there", "restart", "name"),
    [
        ([], 0, "7"),
        (["7"], 0, "7-2"),  # the cluster has counted from one again
        (["7", "7-2"], 0, "7-3"),
        (["7"], 1, "7"),  # the same job, requeued
        (["7", "7-2"], 1, "7-2"),
        ([], 1, "7"),
        (["77", "8"], 0, "7"),
    ],
)
def test_default_place(there: list[str], restart: int, name: str, tmp_path: Path) -> None:
    for one in there:
        (tmp_path / "runs" / one).mkdir(parents=True)
    assert default_run_dir(tmp_path, "7", restart) == tmp_path / "runs" / name


def test_a_second_start_leaves_the_nonce_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "deep in" / "run"
    nonces = [prepare(run_dir) for _ in range(2)]
    assert (run_dir / "nonce").read_text() == nonces[1]
    assert nonces[0] == nonces[1] != prepare(tmp_path / "other")
    assert (run_dir / "logs").is_dir()


def test_a_journal_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(CreateError, match=r"journal.jsonl: is no file"):
        prepare(tmp_path)


def test_a_successor_keeps_the_snapshot(tmp_path: Path) -> None:
    recipe, run_dir = tmp_path / "recipe", tmp_path / "run"
    recipe.mkdir()
    (recipe / "recipe.yaml").write_text("old")
    prepare(run_dir)
    lease.take(run_dir, "7", 0, 0)
    snapshot(recipe, run_dir, "7")
    (recipe / "recipe.yaml").write_text("edited since")
    rundir.hand_over(run_dir, "7", "8")
    assert (snapshot(recipe, run_dir, "8") / "recipe.yaml").read_text() == "old"
    rundir.hand_over(run_dir, "6", "9")  # not this run's job
    assert (snapshot(recipe, run_dir, "9") / "recipe.yaml").read_text() == "edited since"


def test_beats_of_old_supervisors_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "beat_dir", lambda *_: tmp_path / "x")
    for name in ("7.1.3", "7.2.4", "77.1.1"):
        (tmp_path / name).mkdir()
    (tmp_path / "7.1.n.1.guard").write_text("5")
    rundir.forget_beats("7", range(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7.2.4", "77.1.1"]


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/none/run")):
        with pytest.raises(CreateError, match=r"RUN_DIR cannot be written: .*Fix: give --run-dir"):
            prepare(place)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageError),
        (errno.EDQUOT, StorageError),
        (errno.EACCES, CreateError),
        (errno.EROFS, CreateError),
        (errno.EIO, CreateError),
    ],
)
def test_error_of_the_file_system_is_explained(number: int, kind: type[Exception]) -> None:
    error = rundir._explained(Path("/r"), OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert os.strerror(number) in str(error)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "my recipe"
    for name in (
        "train.py", "sizes/7b.yaml", "runs/1/log", "data/x.bin", ".git/HEAD", "__pycache__/a.pyc",
        "sizes/__pycache__/b.pyc", "sizes/data/kept", "sizes/runs/kept",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "run me.sh").write_text("#!/bin/bash\n")
    (folder / "run me.sh").chmod(0o755)
    return folder


@pytest.fixture
def run_dir(recipe: Path) -> Path:
    folder = recipe / "runs" / "7"
    prepare(folder)
    lease.take(folder, "7", 0, 0)
    return folder


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


KEPT = {"train.py", "sizes/7b.yaml", "sizes/data/kept", "sizes/runs/kept", "run me.sh"}


def test_snapshot_holds_the_program_and_not_its_data(recipe: Path, run_dir: Path) -> None:
    copy = snapshot(recipe, run_dir, "7")
    assert copy == run_dir / "recipe"
    assert files(copy) == KEPT
    assert os.access(copy / "run me.sh", os.X_OK)
    assert not (run_dir / "recipe.tmp").exists()


def test_a_requeued_job_keeps_its_snapshot(recipe: Path, run_dir: Path) -> None:
    snapshot(recipe, run_dir, "7")
    (recipe / "train.py").write_text("edited while it runs")
    assert (snapshot(recipe, run_dir, "7") / "train.py").read_text() == "train.py"


def test_a_new_job_takes_a_new_snapshot_and_keeps_the_old(recipe: Path, run_dir: Path) -> None:
    for number, job in enumerate(("7", "8", "9")):
        (recipe / "train.py").write_text(f"fix {number}")
        assert (snapshot(recipe, run_dir, job) / "train.py").read_text() == f"fix {number}"
    assert [(run_dir / f"recipe.{n}" / "train.py").read_text() for n in (1, 2)] == [
        "fix 0",
        "fix 1",
    ]


def test_what_a_killed_snapshot_left_is_no_snapshot(recipe: Path, run_dir: Path) -> None:
    (run_dir / "recipe.tmp").mkdir()
    (run_dir / "recipe.tmp" / "half").write_text("x")
    assert files(snapshot(recipe, run_dir, "7")) == KEPT
    (run_dir / "recipe.job").unlink()  # killed before it was marked as complete
    (run_dir / "recipe" / "train.py").unlink()
    assert files(snapshot(recipe, run_dir, "7")) == KEPT


@pytest.mark.parametrize("place", ["out", "out/deep", "sizes/run"])
def test_a_run_dir_inside_the_recipe_is_not_copied_into_itself(place: str, recipe: Path) -> None:
    run_dir = recipe / place
    prepare(run_dir)
    assert files(snapshot(recipe, run_dir, "7")) == KEPT


def test_nor_is_another_run(recipe: Path, run_dir: Path) -> None:
    prepare(recipe / "elsewhere")
    lease.take(recipe / "elsewhere", "5", 0, 0)
    assert files(snapshot(recipe, run_dir, "7")) == KEPT


def test_links_are_followed_so_that_the_copy_stands_alone(
    recipe: Path, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared.py").write_text("shared")
    (recipe / "linked.py").symlink_to(tmp_path / "shared.py")
    copy = snapshot(recipe, run_dir, "7") / "linked.py"
    assert (copy.is_symlink(), copy.read_text()) == (False, "shared")


def test_a_file_that_cannot_be_copied_is_named(recipe: Path, run_dir: Path) -> None:
    os.mkfifo(recipe / "pipe")
    with pytest.raises(CreateError) as caught:
        snapshot(recipe, run_dir, "7")
    assert str(caught.value).startswith(f"{recipe}/pipe: cannot be copied")
    assert caught.value.code == 73
    assert not (run_dir / "recipe").exists()


@pytest.mark.may_skip("needs the right to mount a file system of its own")
def test_a_full_disk_is_a_storage_error(recipe: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    (recipe / "large.bin").write_bytes(b"x" * 200_000)
    text = (
        "import sys\nfrom pathlib import Path\nfrom resume import rundir\n"
        "from muster.errors import StorageError\n"
        "run_dir = Path(sys.argv[2]) / 'run'\nrundir.prepare(run_dir)\n"
        "try:\n    rundir.snapshot(Path(sys.argv[1]), run_dir, '7')\n"
        "except StorageError as error:\n    print(error)\n"
    )
    mount = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    sandbox = [*unshare, "bash", "-c", mount, "bash", str(small)]
    if subprocess.run([*sandbox, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private mount here")
    done = subprocess.run(
        [*sandbox, sys.executable, "-c", text, str(recipe), str(small)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == (
        f"{small}/run: No space left on device. Fix: free space there, or give another --run-dir\n"
    ), done.stderr


def test_beat_dir_is_in_memory_and_belongs_to_one_attempt_of_one_owner() -> None:
    places = {beat_dir(j, t, a) for j in ("7", "8") for t in (1, 2) for a in (1, 2)}
    assert len(places) == 8
    assert {p.parent for p in places} == {Path(f"/dev/shm/muster-{os.getuid()}")}
