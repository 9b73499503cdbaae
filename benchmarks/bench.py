"""A cluster, the program that is trained, and jobs of it: what all measurements share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ways
from muster.cluster import LocalCluster, Shape
from resume.durable import read_lines
from tests.harness.nodes import back_to_service

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "llama2_fsdp"
LAUNCH = ROOT / "benchmarks" / "launch.py"
EVERY = 10
FAULT_STEP = EVERY + 5  # five training steps are lost
PATIENCE_S = 75.0
START_S = 120.0


@dataclass
class Job:
    """A submitted job and its RUN_DIR."""

    bench: Bench
    number: str
    run_dir: Path
    output: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All training steps so far."""
        return read_lines(self.run_dir / "metrics.jsonl")

    def wait(self, what: str, condition: Callable[[], object], timeout_s: float) -> None:
        """Until the condition holds.

        Raises:
            TimeoutError: it did not, with the end of the job's output.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                said = self.output.read_text()[-2000:] if self.output.exists() else ""
                raise TimeoutError(f"{what}: not in {timeout_s:g} s\n{said}")
            time.sleep(0.05)

    def wait_step(self, step: int) -> None:
        """Until a training step is logged."""
        self.wait(
            f"training step {step}", lambda: any(m["step"] >= step for m in self.metrics), START_S
        )

    def next_attempt_at(self, before: int) -> float | None:
        """When the first training step of a later attempt was done; None: not in time."""

        def later() -> list[dict[str, Any]]:
            return [m for m in self.metrics if m["attempt"] > before]

        with contextlib.suppress(TimeoutError):
            self.wait("a training step after the fault", later, PATIENCE_S)
            return float(later()[0]["time"])
        return None

    def state(self) -> str:
        """Slurm's word for the job's state; empty when it is gone."""
        listed = ["squeue", "--noheader", "--job", self.number, "--format=%T"]
        return self.bench.cluster.exec(listed).out.strip()

    def cancel(self) -> None:
        """End it."""
        self.bench.cluster.exec(["scancel", self.number])
        self.wait("the job to go", lambda: not self.state(), START_S)


class Bench:
    """The local cluster with a prepared copy of the recipe."""

    def __init__(self, out: Path) -> None:
        self.out = out
        # The nodes share this machine's cores: a health check of all of them every few seconds
        # would be a load that no real node has.
        quiet = (("HealthCheckInterval", "600"),)
        self.cluster = LocalCluster(f"bench{os.getpid()}", Shape(5, boot_s=0.2, settings=quiet))
        self.recipe = out / "recipe"
        self._count = 0

    @contextlib.contextmanager
    def up(self) -> Iterator[Bench]:
        """Cluster and data, for as long as the context."""
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(RECIPE, self.recipe, ignore=shutil.ignore_patterns("runs", "__pycache__"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        prepare = [sys.executable, "prepare.py"]
        subprocess.run(prepare, cwd=self.recipe, env=environment, check=True, capture_output=True)
        self.cluster.up(owner_pid=os.getpid())
        try:
            yield self
        finally:
            self.cluster.down()

    def submit(self, script: Path, options: list[str], words: list[str], run_dir: Path) -> Job:
        """Hand a script that trains in RUN_DIR to sbatch."""
        run_dir.mkdir(parents=True, exist_ok=True)
        output = run_dir.with_suffix(".out")
        argv = ["sbatch", "--parsable", f"--output={output}", f"--chdir={self.recipe}", *options]
        done = self.cluster.exec([*argv, str(script), *words])
        if not done.ok:
            raise RuntimeError(f"sbatch: {done.reason}")
        return Job(self, done.out.strip(), run_dir, output)

    def run_dir(self, name: str) -> Path:
        """A new one."""
        self._count += 1
        return self.out / f"{self._count:03d}_{''.join(c if c.isalnum() else '_' for c in name)}"

    def by_muster(self, recipe_values: list[str], overrides: list[str]) -> Job:
        """The recipe as its user submits it."""
        run_dir = self.run_dir("muster")
        words = [f"--run-dir={run_dir}", *recipe_values, "--", *overrides]
        return self.submit(self.recipe / "run.sbatch", [], words, run_dir)

    def by_hand(self, way: ways.Way, overrides: list[str], seed: Path | None = None) -> Job:
        """The same program in a batch script of its own; `seed`: a checkpoint to start from."""
        run_dir = self.run_dir(way.name)
        if seed is not None:
            shutil.copytree(seed, run_dir / "checkpoints" / seed.name)
        script = run_dir.with_suffix(".sbatch")
        script.write_text(way.script)
        program = f"python {LAUNCH} train.py {' '.join(overrides)}"
        exported = f"--export=ALL,MUSTER_RUN_DIR={run_dir},PROGRAM={program},PYTHONPATH={ROOT}"
        return self.submit(script, [*way.options, exported], [], run_dir)

    def repair(self) -> None:
        """All nodes in service again."""
        back_to_service(self.cluster, START_S)


COLD = ways.Way("cold srun", ways.HEAD + ways.COLD, ("--nodes=2",), ())
TINY = [f"checkpoint.every={EVERY}", "train.steps=100000"]


def make_seed(bench: Bench) -> Path:
    """A checkpoint of training step 10; also warms the machine up. Returns its folder."""
    job = bench.by_hand(COLD, TINY)
    published = job.run_dir / "checkpoints" / f"step_{EVERY:08d}"
    job.wait("a first checkpoint", published.is_dir, START_S)
    kept = bench.out / published.name
    shutil.copytree(published, kept)
    job.cancel()
    return kept


def floor_s(bench: Bench, seed: Path) -> float:
    """Seconds from a cold srun to the end of its first training step, from that checkpoint."""
    job = bench.by_hand(COLD, TINY, seed)
    job.wait_step(EVERY + 1)
    started = float((job.run_dir / "started").read_text())
    took = float(job.metrics[0]["time"]) - started
    job.cancel()
    return took
