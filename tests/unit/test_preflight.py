"""Space is looked for before it is needed, and its lack is never blamed on anything else."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resume import preflight
from resume.checkpoint import StorageError
from resume.run import Run
from tests.harness.checkpoints import publish

ROOT = Path(__file__).resolve().parents[2]


def test_size_of_the_last_checkpoint_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight.shortage(tmp_path / "none") is None
    publish(tmp_path, 1, {"a.bin": b"x" * 5000})
    publish(tmp_path, 2, {"a.bin": b"x" * 1000, "b.bin": b"y" * 500})
    assert preflight.last_bytes(tmp_path) == 1500
    for free, said in (
        (1500, None),
        (1499, "no space left: 1.5 kB free, the last checkpoint has 1.5 kB"),
        (0, "no space left: 0 bytes free, the last checkpoint has 1.5 kB"),
    ):
        monkeypatch.setattr(preflight, "free_bytes", lambda _, free=free: free)
        assert preflight.shortage(tmp_path) == said


def test_a_damaged_manifest_is_passed_over(tmp_path: Path) -> None:
    publish(tmp_path, 1, {"a.bin": b"x" * 700})
    (publish(tmp_path, 2) / "manifest.json").write_text("{")
    assert preflight.last_bytes(tmp_path) == 700


def test_set_aside_ones_are_counted(tmp_path: Path) -> None:
    for step, why in ((1, "bad1"), (2, "rolled_back1")):
        path = publish(tmp_path, step, {"a.bin": b"x" * 700})
        path.rename(f"{path}.{why}")
    publish(tmp_path, 3)
    assert 1400 < preflight.aside_bytes(tmp_path) < 2400  # with their manifests


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (12e6, "12.0 MB"), (3e12, "3000.0 GB")],
)
def test_bytes_for_people(number: float, text: str) -> None:
    assert preflight.size(number) == text


def test_only_rank_zero_refuses_and_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "checkpoints", 1)
    monkeypatch.setattr(preflight, "free_bytes", lambda _: 10)
    zero = Run(tmp_path, tmp_path, None, 1, 1, 0, 0, 2, None)
    with pytest.raises(StorageError, match=r"step_00000002.a1.tmp: no space left: 10 bytes free"):
        zero.begin_checkpoint(2)
    draft = dataclasses.replace(zero, rank=1).begin_checkpoint(2)
    assert list(draft.dir.iterdir()) == []


FULL = """
import sys
from pathlib import Path
from resume import preflight
from tests.harness.checkpoints import publish
folder = Path(sys.argv[1]) / "checkpoints"
publish(folder, 1, {"a.bin": b"x" * 40_000})
print(preflight.shortage(folder))
"""


@pytest.mark.may_skip("needs the right to mount a file system of its own")
def test_a_real_file_system_says_how_much_is_free(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    sandbox = [*unshare, "bash", "-c", mount, "bash", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*sandbox, "true"], check=False).returncode:
        pytest.skip("no private mount here")
    done = subprocess.run(
        [*sandbox, sys.executable, "-c", FULL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == (
        "no space left: 20.5 kB free, the last checkpoint has 40.0 kB\n"
    ), done.stderr  # fmt: skip
