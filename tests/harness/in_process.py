"""A recipe's own program in forked children of the test: seconds less than starting it anew.

So a test may change what the program does, and read back what it says of every training step.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import resume
from tests.harness import child

STEPS, SAVED = 4, 2
"""Training steps of the unbroken run, and between its checkpoints."""

WORDS = [
    "model.num_layers=1",
    "optim.warmup_steps=3",
    "train.global_batch=4",
    "train.micro_batch=2",
    f"train.steps={STEPS}",
    f"checkpoint.every={SAVED}",
    "checkpoint.mode=sync",
    "log.tensorboard=false",
    "train.cpu_threads=1",  # a forked child has no others
]
Lines = dict[str, dict[str, Any]]
"""Training step: its line of metrics.jsonl."""

Inject = Callable[[Any], None]
"""Changes the modules of a recipe, in the child."""


@dataclass(frozen=True)
class Program:
    """Modules of a recipe, its folder, its data, and a place for its runs."""

    modules: Any
    folder: Path
    data: Path
    runs: Path

    def config(self, *words: str) -> Any:
        """Options of a run."""
        return self.modules.config.load(self.folder, [*WORDS, f"data.dir={self.data}", *words])

    def start(self, name: str, *words: str, change: Inject | None = None, **more: Any) -> Any:
        """Train in a child; `more`: rank, world_size, checkpoint."""
        run_dir = self.runs / name
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        facts = {"rank": 0, "world_size": 1, "checkpoint": None, **more}
        run = resume.Run(
            dir=run_dir, recipe_dir=self.folder, resume=facts["checkpoint"], attempt=1, token=0,
            rank=facts["rank"], local_rank=facts["rank"], world_size=facts["world_size"],
            beat_dir=None,
        )  # fmt: skip

        def work() -> Lines:
            if change is not None:
                change(self.modules)
            with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
                self.modules.train.train(run, self.config(*words))
            lines = (run_dir / "metrics.jsonl").read_text().splitlines()
            return {str(line["step"]): line for line in map(json.loads, lines)}

        return child.start(work)

    def train(self, name: str, *words: str, change: Inject | None = None, **more: Any) -> Any:
        """Train to the end; the lines, or a text that begins with ! and says how it ended."""
        return self.start(name, *words, change=change, **more).result()

    def go_on(
        self, name: str, after: str, *words: str, step: int = SAVED, change: Inject | None = None
    ) -> Any:
        """The same from a checkpoint of another run on."""
        path = self.runs / after / "checkpoints" / f"step_{step:08d}"
        return self.train(name, *words, change=change, checkpoint=path)

    def two_ranks(self, name: str, *words: str, change: Inject | None = None, **more: Any) -> Any:
        """The same with two ranks; the lines of the first."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks = [
            self.start(name, *words, change=change, rank=rank, world_size=2, **more)
            for rank in range(2)
        ]
        first, _ = (rank.result() for rank in ranks)
        return first


def column(lines: Any, name: str) -> dict[str, Any]:
    """One value of every training step."""
    assert isinstance(lines, dict), lines
    return {step: line[name] for step, line in lines.items()}


def goes_on_as_if_nothing_had_happened(resumed: Any, whole: Lines) -> bool:
    """Bit for bit, two training steps or more: the first loss says nothing about the optimizer."""
    assert len(resumed) >= 2, resumed
    return all(
        column(resumed, name) == {s: x for s, x in column(whole, name).items() if s in resumed}
        for name in ("loss", "grad_norm", "lr", "samples")
    )
