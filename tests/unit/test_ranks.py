"""Ranks on a node: what their beats say, who is signalled, and who is never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resume.ranks import Ranks, find, kill

LONG = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process that sleeps, with the given environment; all are gone in the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(**environment: str) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], **environment}
        started.append(subprocess.Popen(["sleep", "600"], env=env))
        # Between fork and exec a child still shows its parent's environment.
        comm = Path(f"/proc/{started[-1].pid}/comm")
        until(lambda: comm.read_text() == "sleep\n")
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def marks(run_dir: Path, attempt: int = 1, step_id: str = "SLURM_STEP_ID") -> dict[str, str]:
    return {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_ATTEMPT": str(attempt), step_id: "4"}


def test_only_ranks_of_this_run_and_attempt_are_found(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    run = tmp_path / "a run"
    one, two = start(**marks(run, 1)), start(**marks(run, 12, "SLURM_STEPID"))
    without_step = {k: v for k, v in marks(run).items() if k != "SLURM_STEP_ID"}
    without_attempt = {k: v for k, v in marks(run).items() if k != "MUSTER_ATTEMPT"}
    others = [
        start(**without_step),  # srun itself, in the batch step
        start(**without_attempt),  # a guard
        start(**marks(Path(f"{run}2"))),
        start(**marks(run / "inner")),
        start(),
        start(OTHER=f"MUSTER_RUN_DIR={run}", **marks(tmp_path)),
    ]
    assert sorted(find(run)) == sorted([one.pid, two.pid])
    assert (find(run, 1), find(run, 12), find(run, 2)) == ([one.pid], [two.pid], [])
    assert kill(run, 1) == 1
    assert one.wait(LONG) == -signal.SIGKILL
    assert kill(run, 1) == 0
    assert two.poll() is None
    assert kill(run) == 1
    assert two.wait(LONG) == -signal.SIGKILL
    assert kill(run) == 0
    assert [process.poll() for process in others] == [None] * len(others)


def test_a_dead_process_that_nobody_waited_for_is_not_left(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    rank = start(**marks(tmp_path))
    os.kill(rank.pid, signal.SIGKILL)
    until(lambda: ") Z " in Path(f"/proc/{rank.pid}/stat").read_text())
    assert kill(tmp_path) == 0


def test_children_of_ranks_are_killed_too(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], **marks(tmp_path)}
    rank = subprocess.Popen(["setsid", "bash", "-c", "sleep 600 & wait"], env=env)
    until(lambda: len(find(tmp_path)) >= 2)
    until(lambda: kill(tmp_path) == 0)
    rank.wait(LONG)
    assert find(tmp_path) == []


def test_we_are_not_a_rank_of_our_own(tmp_path: Path) -> None:
    text = (
        "import os; from pathlib import Path; from resume.ranks import find, kill;"
        f"print(find(Path({str(tmp_path)!r})), kill(Path({str(tmp_path)!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **marks(tmp_path)},
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "[] 0\n"


# -- beats -----------------------------------------------------------------------------------


def beat(folder: Path, rank: int, text: str) -> None:
    (folder / f"rank_{rank}.json").write_text(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"pid": 5, "phase": "step", "step": 3}', ["step", 3]),
        ('{"pid": 5, "phase": "setup", "step": null}', ["setup", None]),
        ('{"phase": "save"}', ["save", None]),
        ('{"phase": "step", "step": "12"}', ["step", None]),
        ('{"phase": "step", "step": 1.5}', ["step", None]),
        ('{"phase": "step", "step": true}', ["step", None]),
        ('{"phase": 7, "step": 1}', ["7", 1]),
        ('{"phase": "a very long name of a phase", "step": 1}', ["a very long name", 1]),
        ('{"step": 1}', None),
        ('{"phase": "st', None),
        ("", None),
        ("[]", None),
        ("3", None),
        ("\ud800", None),
        ("[" * 100_000, None),
    ],
)
def test_beat(text: str, said: list[object] | None, tmp_path: Path) -> None:
    (tmp_path / "rank_3.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    ranks = Ranks(tmp_path)
    ranks.poll()
    report = ranks.report()
    assert ([report["3"][:2]] if "3" in report else []) == ([said] if said else [])


def test_age_restarts_with_every_change_of_content_or_time(tmp_path: Path) -> None:
    ranks, path = Ranks(tmp_path), tmp_path / "rank_0.json"
    beat(tmp_path, 0, '{"phase": "step", "step": 1}')

    def age() -> float:
        ranks.poll()
        seen = ranks.beats[0].seen_at
        ranks.beats[0].seen_at -= 1000
        return time.monotonic() - seen

    assert age() < 900
    assert age() > 900
    beat(tmp_path, 0, '{"phase": "step", "step": 2}')
    assert age() < 900
    assert age() > 900
    os.utime(path, ns=(1, 1))  # the same words again are life too
    assert age() < 900
    path.write_text("half a beat")
    ranks.poll()
    assert ranks.report()["0"][:2] == ["step", 2]


def test_exit_codes_and_foreign_files(tmp_path: Path) -> None:
    for name, text in {
        "rank_0.exit": "0\n", "rank_11.exit": "137\n", "rank_2.exit": "", "rank_3.exit": "x",
        ".exit.4": "1\n", "rank_x.exit": "1", "rank_5.exit.tmp": "1", "rank_6.tmp": "{}",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    (tmp_path / "rank_7.exit").mkdir()
    ranks = Ranks(tmp_path)
    ranks.poll()
    assert (ranks.exits, ranks.report()) == ({0: 0, 11: 137}, {})
    Ranks(tmp_path / "none").poll()


def test_signal_reaches_the_living_ranks_and_only_processes(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    processes = {rank: start() for rank in (0, 1)}
    for rank, process in processes.items():
        beat(tmp_path, rank, f'{{"phase": "step", "pid": {process.pid}}}')
    for rank, pid in enumerate(["0", "-1", "1", '"5"', "null", "true", "1e3", str(2**70)], 2):
        beat(tmp_path, rank, f'{{"phase": "step", "pid": {pid}}}')
    (tmp_path / "rank_1.exit").write_text("0\n")
    ranks = Ranks(tmp_path)
    ranks.poll()
    assert ranks.signal(signal.SIGUSR2) == [0]
    assert processes[0].wait(LONG) == -signal.SIGUSR2
    assert processes[1].poll() is None
    assert ranks.signal(signal.SIGUSR2) in ([], [0])  # gone, and nobody minds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_any_bytes_are_a_beat_or_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank_0.json").write_bytes(content)
    (tmp_path / "rank_0.exit").write_bytes(content)
    ranks = Ranks(tmp_path)
    ranks.poll()
    ranks.report()
