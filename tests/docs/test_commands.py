"""The bash blocks of README, tutorials and how-to pages are run as a reader would, in a copy.

A block that cannot be run is marked in the page, with the reason: `<!-- not run: needs a GPU -->`.
`<!-- as root -->` leaves one out where root does not run the tests.
`<!-- time limit: 600 s -->` anywhere in a page gives its blocks more than the usual time.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages

ROOT = Path(__file__).resolve().parents[2]
RUN_IN = re.compile(r"^(README\.md|docs/(tutorials|how-to)/.*\.md)$")
ROOT_HERE = os.geteuid() == 0
USES_CLUSTER = re.compile(r"\bmuster cluster\b|\b(sbatch|srun|salloc|scontrol|sinfo|squeue)\b")


def runnable() -> list[object]:
    """One parameter for each page that has something to run."""
    found: list[object] = []
    for name in filter(RUN_IN.match, pages.files(ROOT)):
        script = pages.script((ROOT / name).read_text(encoding="utf-8"), root=ROOT_HERE)
        if script:
            marks = [pytest.mark.cluster] if USES_CLUSTER.search(script) else []
            found.append(pytest.param(name, marks=marks, id=name))
    return found


def copy_repository(root: Path, copy: Path) -> None:
    """Copy what a clone would hold and uncommitted work; installed environments are shared."""
    for name in pages.files(root):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy / name)
    for environments in (".nox", ".muster"):
        if (root / environments).is_dir():
            (copy / environments).symlink_to(root / environments)


def reader(home: Path, copy: Path) -> dict[str, str]:
    """The environment of somebody who follows a page: a home, and `muster` on PATH as on a node."""
    programs = home / "bin"
    programs.mkdir(parents=True)
    muster = programs / "muster"
    muster.write_text(
        f"#!/bin/sh\nPYTHONPATH='{copy}' exec '{sys.executable}' -m muster \"$@\"\n", "utf-8"
    )
    muster.chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    keep = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return keep | {"HOME": str(home), "PATH": path}


def run_script(script: str, copy: Path, home: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a page's blocks; returns the exit code (None: time limit) and everything they printed."""
    log = home.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=copy,
            env=reader(home, copy),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_text(errors="replace")


@pytest.mark.parametrize("name", runnable())
def test_commands_of_the_page_work(name: str, tmp_path: Path) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    copy_repository(ROOT, tmp_path / "muster")
    code, output = run_script(
        pages.script(page, root=ROOT_HERE),
        tmp_path / "muster",
        tmp_path / "home",
        pages.time_limit_s(page),
    )
    assert code == 0, f"{name}: exit code {code}\n{output[-6000:]}"


@pytest.mark.parametrize("name", [name for name in pages.files(ROOT) if RUN_IN.match(name)])
def test_a_block_that_is_not_run_says_why(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    silent = [block.line for block in pages.blocks(page) if block.not_run == ""]
    assert silent == []
    # Another word for bash would quietly not be run.
    other = {"sh", "shell", "console", "shell-session", "terminal"}
    assert [block.line for block in pages.blocks(page) if block.language in other] == []


def test_blocks_run_in_order_and_the_failing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    page = (
        "```bash\nwhere=here\n```\n```text\nexit 9\n```\n<!-- not run: costs money -->\n"
        '```bash\nexit 8\n```\n```bash\necho "$where"\nfalse | true\necho not reached\n```\n'
    )
    code, output = run_script(
        pages.script(page, root=ROOT_HERE), tmp_path / "copy", tmp_path / "home", 60
    )
    assert code == 1
    assert output == "## the block at line 1\n## the block at line 11\nhere\n"


def test_what_only_root_can_run_is_left_out_for_others() -> None:
    page = "```bash\necho all\n```\n<!-- as root -->\n```bash\necho root\n```\n"
    assert "echo root" in pages.script(page, root=True)
    assert pages.script(page, root=False).splitlines()[-1] == "echo all"


def test_a_page_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    page = "<!-- time limit: 1 s -->\n```bash\nsleep 600 & wait\n```\n"
    limit_s = pages.time_limit_s(page)
    code, _ = run_script(
        pages.script(page, root=ROOT_HERE), tmp_path / "copy", tmp_path / "home", limit_s
    )
    assert code is None


def test_copy_holds_the_uncommitted_and_not_the_ignored(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True, timeout=60)
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("")
    (root / "new file").write_text("")
    copy_repository(root, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [".gitignore", "new file"]
