"""What the tests of recipes share: loading a recipe's files, and starting its ranks."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import in_process, warm
from tests.sessions.environment import alone, belongs_here

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("recipes/*/recipe.yaml"))
RECIPES = [folder.name for folder in FOLDERS if belongs_here(folder.name)]
# What is about libraries that are not in this environment: ./run frameworks.
collect_ignore_glob = [f"test_{name}*.py" for name in sorted(alone()) if not belongs_here(name)]
WHOLE_IN_CI = "llama2_fsdp"  # of which CI asks everything; `./run recipes` of the others
TIMEOUT_S = 600  # generous: CI machines are slow and shared


def one_in_ci(fixture: str, also: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """A test over all recipes that CI runs for one of them, and for those in `also`: minutes."""
    fast = {WHOLE_IN_CI, *also}
    rows = [pytest.param(r, marks=() if r in fast else (pytest.mark.slow,)) for r in RECIPES]
    return pytest.mark.parametrize(fixture, rows, indirect=True)


def load_recipe(name: str, *only: str) -> Any:
    """The modules of a recipe by name. Several recipes have a model.py, so none stays imported."""
    folder = ROOT / "recipes" / name
    names = sorted(path.stem for path in folder.glob("*.py"))
    kept = {n: sys.modules.pop(n) for n in names if n in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():  # Megatron-Core says what is not installed
            warnings.simplefilter("ignore")
            return SimpleNamespace(**{n: importlib.import_module(n) for n in only or names})
    finally:
        sys.path.remove(str(folder))
        for n in names:
            sys.modules.pop(n, None)
        sys.modules.update(kept)


@pytest.fixture(scope="session")
def fsdp() -> Any:
    pytest.importorskip("torch")
    return load_recipe("llama2_fsdp")


@pytest.fixture(scope="session")
def megatron() -> Any:
    pytest.importorskip("megatron.core")
    return load_recipe("llama2_megatron")


@pytest.fixture(scope="session")
def lightning() -> Any:
    pytest.importorskip("lightning.pytorch")
    return load_recipe("llama2_lightning")


@pytest.fixture(scope="session")
def automodel() -> Any:
    return load_recipe("llama2_automodel")


@pytest.fixture(scope="session")
def nemo() -> Any:
    return load_recipe("llama2_nemo")


@pytest.fixture(scope="module", params=RECIPES)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> in_process.Program:
    """Each recipe whose libraries are in this environment, with prepared data."""
    modules = request.getfixturevalue(request.param.removeprefix("llama2_"))
    folder, place = ROOT / "recipes" / request.param, tmp_path_factory.mktemp(request.param)
    command = [sys.executable, str(folder / "prepare.py"), "--out", str(place / "data")]
    subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True)
    return in_process.Program(modules, folder, place / "data", place)


@pytest.fixture(scope="module")
def whole(program: in_process.Program) -> in_process.Lines:
    """The unbroken run of the recipe as it is."""
    lines: in_process.Lines = program.train("whole")
    assert sorted(lines) == ["1", "2", "3", "4"], lines
    return lines


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class Ranks:
    """The processes of one attempt, started as the supervisor would, without one."""

    run_dir: Path
    processes: list[Any] = field(default_factory=list)

    def codes(self) -> list[int]:
        deadline = time.monotonic() + TIMEOUT_S
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired:
            pytest.fail(f"ranks still run after {TIMEOUT_S} s: {self.logs()}")
        finally:
            self.kill()

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def logs(self) -> list[str]:
        return [p.read_text() for p in sorted(self.run_dir.glob("rank_*.log"))]

    def errors(self) -> list[str]:
        return [p.read_text() for p in sorted(self.run_dir.glob("rank_*.err"))]

    def metrics(self) -> dict[int, dict[str, Any]]:
        return {line["step"]: line for line in read_lines(self.run_dir / "metrics.jsonl")}

    def done(self) -> dict[str, Any] | None:
        path = self.run_dir / "DONE"
        return json.loads(path.read_text()) if path.exists() else None

    def checkpoints(self) -> list[str]:
        return sorted(p.name for p in (self.run_dir / "checkpoints").glob("*"))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.errors()
            assert any(p.poll() is None for p in self.processes), self.errors()
            time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


Launch = Callable[..., Ranks]


def from_nothing(command: list[str], *, out: Path, err: Path, **facts: Any) -> Any:
    """A process as a launcher starts it: Python, then seconds of imports."""
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, *command], stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL,
            **facts,
        )  # fmt: skip


def launching(process: Callable[..., Any]) -> Iterator[Launch]:
    """launch(recipe folder, RUN_DIR, world size, *words, **environment) -> Ranks."""
    started: list[Ranks] = []

    def start(folder: Path, run_dir: Path, world_size: int, *words: str, **more: str) -> Ranks:
        beats = run_dir / "beats"
        beats.mkdir(parents=True, exist_ok=True)
        port = free_port()
        ranks = Ranks(run_dir)
        started.append(ranks)
        for rank in range(world_size):
            env = {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "MUSTER_RUN_DIR": str(run_dir),
                "MUSTER_RECIPE_DIR": str(folder),
                "MUSTER_BEAT_DIR": str(beats),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **more,
            }
            out, err = run_dir / f"rank_{rank}.log", run_dir / f"rank_{rank}.err"
            command = [str(folder / "train.py"), *words]
            ranks.processes.append(process(command, cwd=folder, env=env, out=out, err=err))
        return ranks

    yield start
    for ranks in started:
        ranks.kill()


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """Ranks as the supervisor starts them, without one."""
    yield from launching(from_nothing)


@pytest.fixture(scope="session")
def launch_warm() -> Iterator[Launch]:
    """The same with libraries that are imported already: seconds less for each rank."""
    warm.prepare([ROOT / "recipes" / name for name in RECIPES])
    yield from launching(warm.Process)
