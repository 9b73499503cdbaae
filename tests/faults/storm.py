"""Faults at random, again and again, as fast as they come: the training always gets through.

The moments are random on purpose: between two instructions of a save, of a restart, of a takeover.
`muster watch` brings the lost nodes back, as on a real site. In the end the run is the one that
nobody disturbed, bit for bit, and its ETTR says what the storm has cost.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from muster.cluster import LocalCluster
from muster.errors import MusterError
from resume.report import write_report
from tests.faults import judge, twin
from tests.faults.fault import Fault, goes_on, recovers
from tests.faults.rehearsal import SHAPE, left
from tests.faults.stage import Stage
from tests.faults.twin import RANKS, Twin
from tests.harness.training import Training, submit

STORM_SHAPE = replace(SHAPE, nodes=8)
ENDLESS = ("budget.no_progress=1000", "budget.attempts=100000", "budget.same_place=1000")
CALM_S = 15  # `rehearsal.steps` are so many seconds of undisturbed training
EXPECTED_ETTR = 0.4  # what is left comes after the storm
_ENDS = ("done", "stopped")


@dataclass
class Storm:
    """One storm over one recipe."""

    cluster: LocalCluster  # of STORM_SHAPE, up
    twin: Twin
    faults: Sequence[Fault]
    out: Path
    seed: int
    minutes: float
    every_s: float
    steps: int = 0  # training steps of the run; 0: as many as its minutes should have
    struck: list[dict[str, Any]] = field(default_factory=list)
    raged_s: float = 0.0  # less than `minutes` where the training was complete before

    def __post_init__(self) -> None:
        pace = self.twin.steps / CALM_S
        expected = max(self.twin.steps, int(self.minutes * 60 * pace * EXPECTED_ETTR))
        self.steps = self.steps or expected

    def rage(self) -> dict[str, Any]:
        """All of it; returns what storm.json holds. `problems` is empty when nothing was lost."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        with watching(self.cluster, self.out):
            run = self._submit("storm")
            self.raged_s = self._strike_until_over(run)
            end = run.wait_end(600 + 60 * self.minutes)
        calm = self._submit("calm")
        if calm.wait_end(600 + 60 * self.minutes) != "done":
            raise RuntimeError(f"it fails in calm weather too\n{calm.story()}")
        return self._conclude(run, calm, end)

    def _submit(self, name: str) -> Training:
        place = self.out / name
        nothing = Fault(lambda _: None, goes_on())
        copy = twin.copy(self.twin, place / "my copy", nothing, place / "fuse")
        words = [*self.twin.patience, *ENDLESS, "--", *self.twin.training(RANKS, self.steps)]
        return submit(self.cluster, copy, *words, run_dir=place / "run")

    def _strike_until_over(self, run: Training) -> float:
        """One fault every `every_s`, whatever the run is doing just then; returns for how long."""
        dice = random.Random(self.seed)
        run.wait_step(1, timeout_s=30 + self.twin.start_s)
        began = time.monotonic()
        number = 1
        while (raged_s := time.monotonic() - began) < 60 * self.minutes:
            due = began + (number - 1 + dice.random()) * self.every_s
            fault = dice.choice(self.faults)
            while time.monotonic() < due and run.journal[-1]["event"] not in _ENDS:
                time.sleep(0.1)
            if run.journal[-1]["event"] in _ENDS:
                break
            number += 1
            self._strike(run, fault)
        return raged_s

    def _strike(self, run: Training, fault: Fault) -> None:
        """One fault; what it would hit may be gone already."""
        stage = Stage(self.cluster, run, self.out, self.out / "fuse", fault, lambda _: run)
        missed = None
        try:
            fault.strike(stage)
        except (LookupError, MusterError, TimeoutError) as error:
            missed = str(error).splitlines()[0]
        facts = {"fault": fault.name, "step": run.last_step(), "missed": missed}
        self.struck.append({"time": time.time(), **facts})
        said = f"{fault.name} at training step {facts['step']}"
        print(f"{len(self.struck):4d} {said}{f' (missed: {missed})' if missed else ''}", flush=True)

    def _conclude(self, run: Training, calm: Training, end: str) -> dict[str, Any]:
        summary = write_report(run.run_dir, self.out, baseline=calm.run_dir)
        facts = judge.seen(summary, left(run.run_dir), left(calm.run_dir))
        first = {"cause": facts["cause"], "action": facts["action"]}
        calmly = replace(recovers("", loses=10**6), **first)
        problems = judge.problems(calmly, facts, same_layout=True, every=1)
        hits = sum(one["missed"] is None for one in self.struck)
        if not hits:
            problems.append("nothing was hit")
        result = {
            "good": not problems,
            "problems": problems,
            "recipe": self.twin.name,
            "seed": self.seed,
            "minutes": self.minutes,
            "raged_s": self.raged_s,
            "every_s": self.every_s,
            "struck": hits,
            "missed": len(self.struck) - hits,
            "end": end,
            "steps": self.steps,
            "attempts": facts["attempts"],
            "lost_steps": facts["lost_steps"],
            "ettr": summary.ettr,
            "mttr_s": summary.mttr_s,
            "wall_s": summary.wall_s,
            "losses_equal": facts["losses_equal"],
            "weights_equal": facts["weights_equal"],
            "samples_equal": facts["samples_equal"],
            "faults": self.struck,
        }
        (self.out / "storm.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        return result


@contextmanager
def watching(cluster: LocalCluster, out: Path) -> Iterator[None]:
    """`muster watch` on the head: without it a storm runs out of nodes."""
    argv = ["muster", "watch", "--interval", "1", "--log", str(out / "watch.jsonl")]
    argv += ["--state", str(out / "watch.json")]
    with (out / "watch.log").open("wb") as log:
        process = subprocess.Popen(
            cluster.exec_argv(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
