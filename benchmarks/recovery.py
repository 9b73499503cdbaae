"""How long a fault keeps the training from its next training step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.bench import FAULT_STEP, TINY, Bench, Job, floor_s, make_seed
from benchmarks.faults import FAULTS, recovery_s
from benchmarks.figures import Row
from benchmarks.ways import WAYS, Way
from muster.recipe import Hang
from resume.durable import read_lines
from resume.metrics import MetricsTail

HANG_S = 3.0
HANGS = "rank hangs"
# Seconds over the floor that are promised. The scheduler's part of a requeue is not ours.
PROMISED = {
    "rank killed": 1.0,
    "worker lost": 4.0,
    "worker lost, silent": 4.0,
    "batch host lost": 8.0,
    HANGS: 2.0,  # and over the limit in force: of a slow machine it is above HANG_S
}


@dataclass
class Samples:
    """Of one way and one fault, over the rounds."""

    took_s: list[float | None] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    hang_s: list[float] = field(default_factory=list)  # the limit in force

    def add(self, took_s: float | None, phases: dict[str, float], hang_s: float) -> None:
        """One round."""
        self.took_s.append(took_s)
        self.hang_s.append(hang_s)
        for name, value in phases.items():
            self.phases.setdefault(name, []).append(value)


def measure(
    out: Path, rounds: int, only: str, fault_words: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Floor and all chosen ways and faults, round by round, so that a slow minute hits all alike.

    Returns:
        plain data: the floor and the rows, see `figures.Row`.
    """
    samples: dict[tuple[str, str], Samples] = {}
    floors: list[float] = []
    with Bench(out).up() as bench:
        seed = make_seed(bench)
        for number in range(rounds):
            floors.append(floor_s(bench, seed))
            say(f"round {number + 1}: cold srun {floors[-1]:.2f} s")
            for name, fault, start in cases(bench, only, fault_words):
                took, phases, hang_s = one(bench, start(), fault)
                samples.setdefault((name, fault), Samples()).add(took, phases, hang_s)
                parts = ", ".join(f"{key} {value:.2f}" for key, value in phases.items())
                parts += f", limit {hang_s:.2f}" if fault == HANGS else ""
                say(f"round {number + 1}: {name}, {fault}: {figures.seconds(took)} s  {parts}")
    floor = statistics.median(floors)
    rows = [row(name, fault, found, floor) for (name, fault), found in samples.items()]
    return {
        "floor_s": floor,
        "floor_samples_s": floors,
        "rows": [r.as_json() for r in rows],
        "text": f"{figures.table(rows, floor)}\n\n{figures.phase_table(rows)}",
    }


def cases(bench: Bench, only: str, fault_words: str) -> list[tuple[str, str, Callable[[], Job]]]:
    """(way, fault, how to start a job of it), those whose names hold the given words."""
    found: list[tuple[str, str, Callable[[], Job]]] = []
    values = [f"hang.floor_s={HANG_S}"]
    found += [("muster", fault, lambda: bench.by_muster(values, TINY)) for fault in PROMISED]
    for way in WAYS:
        found += [(way.name, fault, starter(bench, way)) for fault in way.faults]
    return [case for case in found if only in case[0] and fault_words in case[1]]


def starter(bench: Bench, way: Way) -> Callable[[], Job]:
    """Starts a job of this way."""
    return lambda: bench.by_hand(way, TINY)


def one(bench: Bench, job: Job, fault: str) -> tuple[float | None, dict[str, float], float]:
    """One fault.

    Returns:
        seconds to the next training step, their parts where a journal tells, and the silence of a
        rank from which muster took it to hang, in seconds.
    """
    assert fault in FAULTS
    job.wait_step(FAULT_STEP)
    at, took = recovery_s(job, fault)
    journal = read_lines(job.run_dir / "journal.jsonl")
    phases = figures.phases(journal, at, at + took) if journal and took is not None else {}
    hang_s = limit_in_force_s(job.run_dir / "metrics.jsonl")
    job.cancel()
    bench.repair()
    return took, phases, hang_s


def limit_in_force_s(metrics: Path) -> float:
    """The silence that counts as a hang in the first attempt, from its training steps."""
    tail = MetricsTail(metrics, attempt=1)
    tail.poll()
    return max(HANG_S, Hang().factor * (tail.p99_s() or 0.0))


def row(way: str, fault: str, found: Samples, floor: float) -> Row:
    """With the promise, where there is one: the scheduler's part comes on top of it."""
    if way != "muster":
        return Row(way, fault, found.took_s)
    scheduler = statistics.median(found.phases.get("scheduler", [0.0]))
    waited = statistics.median(found.hang_s) if fault == HANGS else 0.0
    text = f"floor + {PROMISED[fault]:g}"
    text += f" + limit {waited:.1f}" if waited else ""
    text += f" + scheduler {scheduler:.1f}" if scheduler else ""
    limit = floor + PROMISED[fault] + scheduler + waited
    return Row(way, fault, found.took_s, limit, text, found.phases)
