"""What `muster run` costs when nothing breaks: wall time of the same training with and without it.

From the start of the batch script to its end. Both run the recipe's two commands with the same
number of training steps on two nodes; `muster run` has its gate, guards and supervisor besides, a
third node as a spare, and verifies nothing that bare srun does not write as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ways
from benchmarks.bench import Bench, Job
from benchmarks.figures import Row, seconds

PROMISED = 0.01
EVERY = 100
_TIMED = 'date +%s.%N >"$MUSTER_RUN_DIR/began"\n{line}\ndate +%s.%N >"$MUSTER_RUN_DIR/ended"\n'
BARE = ways.Way(
    "bare srun",
    ways.HEAD
    + "export MASTER_ADDR=$(nodes | head -n 1)\n"
    + _TIMED.format(
        line="srun --nodes=1 --ntasks=1 python prepare.py &&\n"
        "srun --nodes=2 --ntasks=2 --kill-on-bad-exit=1 $PROGRAM"
    ),
    ("--nodes=2",),
    (),
)
MUSTER = ways.Way(
    "muster run",
    ways.HEAD
    + _TIMED.format(
        line='muster run --recipe "$PWD" --run-dir "$MUSTER_RUN_DIR" -- ${PROGRAM#*train.py }'
    ),
    ("--nodes=3", "--no-kill", "--requeue"),
    (),
)


def wall_s(bench: Bench, way: ways.Way, steps: int) -> float:
    """Seconds of one whole training.

    Raises:
        TimeoutError: it did not end.
    """
    job: Job = bench.by_hand(way, [f"train.steps={steps}", f"checkpoint.every={EVERY}"])
    ended = job.run_dir / "ended"
    job.wait("the end of the training", lambda: ended.exists() and ended.read_text(), 1200)
    if not (job.run_dir / "DONE").exists():
        raise RuntimeError(f"{way.name}: no DONE\n{job.output.read_text()[-2000:]}")
    began = float((job.run_dir / "began").read_text())
    took = float(ended.read_text()) - began
    job.wait("the job to go", lambda: not job.state(), 60)
    return took


def measure(out: Path, rounds: int, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Pairs of runs, ours first in every other one.

    Returns:
        plain data; a row's samples are wall times in seconds.
    """
    samples: dict[str, list[float]] = {BARE.name: [], MUSTER.name: []}
    with Bench(out).up() as bench:
        wall_s(bench, BARE, 20)  # warms the machine up
        short, long = wall_s(bench, BARE, 20), wall_s(bench, BARE, 120)
        steps = int(minutes * 60 / ((long - short) / 100))
        say(f"a training step takes {(long - short) * 10:.0f} ms: {steps} of them")
        for number in range(rounds):
            for way in (BARE, MUSTER) if number % 2 == 0 else (MUSTER, BARE):
                samples[way.name].append(wall_s(bench, way, steps))
                say(f"round {number + 1}: {way.name} {samples[way.name][-1]:.2f} s")
    bare, ours = (statistics.median(samples[name]) for name in (BARE.name, MUSTER.name))
    limit = bare * (1 + PROMISED)
    rows = [
        Row(BARE.name, "none", samples[BARE.name]),
        Row(MUSTER.name, "none", samples[MUSTER.name], limit, f"bare + {PROMISED:.0%}"),
    ]
    met = "met" if rows[1].met else "NOT met"
    text = f"bare srun {seconds(bare)} s, muster run {seconds(ours)} s: {ours / bare - 1:+.2%}"
    return {
        "steps": steps,
        "ratio": ours / bare,
        "rows": [row.as_json() for row in rows],
        "text": f"{text} (limit {PROMISED:+.0%}, {met}), {steps} training steps, n={rounds}",
    }
