"""What a user gets wrong: one line with where, what and fix, and a known exit code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.training import Training, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from muster.cluster import LocalCluster

pytestmark = pytest.mark.cluster


def failed_line(run: Training) -> str:
    """The one line that says what is wrong, once the job has failed."""
    run.wait("the job to fail", lambda: run.state() == "FAILED")
    lines = [line for line in run.output.read_text().splitlines() if "Fix: " in line]
    assert len(lines) == 1, run.story()
    return lines[0]


def exit_code(run: Training) -> int:
    shown = run.cluster.exec(["scontrol", "show", "job", run.job]).out
    word = next(word for word in shown.split() if word.startswith("ExitCode="))
    return int(word[len("ExitCode=") :].split(":")[0])


def edit(recipe: Path, old: str, new: str) -> None:
    path = recipe / "recipe.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CASES = {
    # name: (edit of recipe.yaml or None, arguments of muster run, words of the line, exit code)
    "unknown key": (("spares: 1", "sparse: 1"), [], "Did you mean 'spares'?", 78),
    "unknown override": (None, ["node=3"], "Did you mean 'nodes'?", 78),
    "wrong type": (("nodes: 2", "nodes: two"), [], "'two' is str, not int", 78),
    "too few nodes": (None, ["nodes=9"], "the recipe trains on 9", 78),
    "not YAML": (("nodes: 2", "nodes: [2"), [], "not YAML", 78),
    "RUN_DIR is not shared": (None, ["--run-dir", "/dev/shm/run"], "is not shared", 73),
    "RUN_DIR cannot be written": (None, ["--run-dir", "/proc/run"], "cannot be written", 73),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line(name: str, cluster: LocalCluster, ten_lines: Path) -> None:
    change, words, said, code = CASES[name]
    if change is not None:
        edit(ten_lines, *change)
    run = submit(cluster, ten_lines, *words)
    assert said in failed_line(run)
    assert exit_code(run) == code


def test_a_program_that_always_fails_is_stopped(cluster: LocalCluster, ten_lines: Path) -> None:
    crash = "[[ $step -lt 7 ]] || exit 3"
    script = ten_lines / "train.sh"
    script.write_text(script.read_text().replace("  beat && sleep", f"  {crash}\n  beat && sleep"))
    run = submit(cluster, ten_lines)
    assert run.wait_end() == "stopped", run.story()
    stop = run.events("stopped")[0]
    assert "2 times without getting past training step 7" in stop["why"]
    assert len(run.events("attempt_started")) == 2
    assert run.state() == "FAILED"


@pytest.mark.parametrize(("code", "cause"), [(78, "config"), (65, "data"), (127, "config")])
def test_exit_codes_that_no_retry_can_help(
    code: int, cause: str, cluster: LocalCluster, ten_lines: Path
) -> None:
    (ten_lines / "train.sh").write_text(f"exit {code}\n")
    run = submit(cluster, ten_lines)
    assert run.wait_end() == "stopped", run.story()
    assert [e["cause"] for e in run.events("attempt_ended")] == [cause]


@pytest.fixture
def small_disk(cluster: LocalCluster) -> Iterator[Path]:
    """400 kB on node n1 alone; gone with the node's replacement or by unmounting."""
    disk = cluster.folder.path / "local" / "small"
    script = f"mkdir -p {disk} && mount -t tmpfs -o size=400k small {disk}"
    assert cluster.exec(["bash", "-c", script], node="n1").ok
    yield disk
    cluster.exec(["umount", "--lazy", str(disk)], node="n1")


def on_n1(cluster: LocalCluster, script: str) -> str:
    done = cluster.exec(["bash", "-c", script], node="n1")
    return done.out


def test_full_disk_at_the_start_is_one_line(
    cluster: LocalCluster, ten_lines: Path, small_disk: Path
) -> None:
    on_n1(cluster, f"dd if=/dev/zero of={small_disk}/ballast bs=1k count=1000 2>/dev/null")
    options = ["--nodes=1", "--nodelist=n1"]
    run = submit(cluster, ten_lines, "nodes=1", options=options, run_dir=small_disk / "run")
    assert "No space left on device" in failed_line(run)
    assert exit_code(run) == 74


def test_a_copy_with_a_blank_submitted_from_the_root_folder(
    cluster: LocalCluster, ten_lines: Path
) -> None:
    copy = Path(shutil.copytree(ten_lines, ten_lines.parent / "my copy"))
    argv = ["bash", "-c", 'cd / && sbatch --parsable --output="$1/out" "$1/run.sbatch" -- 12', "_"]
    job = cluster.exec([*argv, str(copy)]).out.strip()
    run = Training(cluster, job, copy / "runs" / job, copy / "out")
    assert run.wait_end() == "done", run.story()
    assert sorted(run.curve()) == list(range(1, 13))
