"""A rank forked from a server behaves as one that was started: words, places, output, end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness import warm

TRAIN = """
import os, sys, time
import beside
print(__name__, sys.argv[1:], os.getcwd(), sys.path[0], dict(os.environ), beside.__file__)
print("a word", file=sys.stderr, flush=True)
if sys.argv[1:] == ["wait"]:
    print("waits", flush=True)
    time.sleep(1000)
sys.exit(7)
"""


def begin(tmp_path: Path, *words: str) -> Any:
    folder = tmp_path / "my recipe"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "beside.py").write_text("import ast, resume\nfrom email import message\n")
    (tmp_path / "other" / "resume").mkdir(parents=True)
    (tmp_path / "other" / "resume" / "__init__.py").touch()
    assert warm.imports(folder) == ["ast", "email", "os", "sys", "time"]
    return warm.Process(
        [str(folder / "train.py"), *words], cwd=folder,
        env={"PYTHONPATH": str(tmp_path / "other"), "ONE": "1"},
        out=tmp_path / "out", err=tmp_path / "err",
    )  # fmt: skip


def test_it_is_the_program_of_the_folder_with_its_environment_alone(tmp_path: Path) -> None:
    assert begin(tmp_path, "a", "b").wait(60) == 7
    folder = tmp_path / "my recipe"
    environment = {"PYTHONPATH": str(tmp_path / "other"), "ONE": "1"}
    said = ("__main__", ["a", "b"], folder, folder, environment, folder / "beside.py")
    assert (tmp_path / "out").read_text().split() == " ".join(map(str, said)).split()
    assert (tmp_path / "err").read_text() == "a word\n"


def test_it_can_be_waited_for_and_ended(tmp_path: Path) -> None:
    process = begin(tmp_path, "wait")
    while "waits" not in ((tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""):
        assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == -signal.SIGUSR2
    assert process.poll() == -signal.SIGUSR2
    process.kill()  # has no effect any more
