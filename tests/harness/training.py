"""One training run on the local cluster: submit, wait for facts, read what it left.

All waiting is for a condition in the run's own files; the only clock is the limit after which a
wait has failed, with the end of the job's output in the message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from muster.cluster import LocalCluster

ENDED = frozenset({"CANCELLED", "COMPLETED", "FAILED", "GONE", "TIMEOUT", "NODE_FAIL", "PREEMPTED"})
_POLL_S = 0.05
_ASK_SLURM_S = 2.0


@dataclass
class Lines:
    """A growing file of JSON lines; only what is new is read. Torn lines are passed over."""

    path: Path
    values: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> list[dict[str, Any]]:
        """All whole lines so far."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                block = file.read()
        except OSError:
            return self.values  # not there yet
        whole = block[: block.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                self.values.append(value)
        return self.values


@dataclass
class Training:
    """A submitted job of a recipe."""

    cluster: LocalCluster
    job: str
    run_dir: Path  # as it is seen from here
    output: Path

    def __post_init__(self) -> None:
        self._journal = Lines(self.run_dir / "journal.jsonl")
        self._metrics = Lines(self.run_dir / "metrics.jsonl")

    @property
    def journal(self) -> list[dict[str, Any]]:
        """All events so far."""
        return self._journal.read()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All training steps so far, repeated ones too."""
        return self._metrics.read()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [entry for entry in self.journal if entry.get("event") == name]

    def last_step(self, attempt: int | None = None) -> int:
        """Newest training step, of one attempt or of any; 0 before the first."""
        for line in reversed(self.metrics):
            if attempt in (None, line["attempt"]):
                return int(line["step"])
        return 0

    def checkpoints(self) -> list[Path]:
        """Published checkpoints, newest first."""
        return sorted((self.run_dir / "checkpoints").glob("step_????????"), reverse=True)

    def wait(self, what: str, condition: Callable[[], object], timeout_s: float = 90) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not in {timeout_s} s\n{self.story()}")
            time.sleep(_POLL_S)

    def wait_step(self, step: int, attempt: int | None = None, timeout_s: float = 90) -> None:
        """Until a training step was logged."""
        self.wait(f"training step {step}", lambda: self.last_step(attempt) >= step, timeout_s)

    def wait_event(self, name: str, count: int = 1, timeout_s: float = 90) -> dict[str, Any]:
        """Until the journal holds that many events of a kind; returns that one."""
        self.wait(f"{count} x {name}", lambda: len(self.events(name)) >= count, timeout_s)
        return self.events(name)[count - 1]

    def wait_end(self, timeout_s: float = 180) -> str:
        """Until the run is done or stopped; returns which, once Slurm agrees."""

        def ended() -> bool:
            return bool(self.journal) and self.journal[-1]["event"] in ("done", "stopped")

        self.wait("the end of the run", ended, timeout_s)
        end = str(self.journal[-1]["event"])
        self.wait_state(ENDED)
        return end

    def wait_state(self, wanted: frozenset[str], timeout_s: float = 90) -> str:
        """Until Slurm has the job in one of these states; returns it. Slurm is asked rarely."""
        deadline = time.monotonic() + timeout_s
        while (state := self.state()) not in wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {self.job} is {state}, not {wanted}\n{self.story()}")
            time.sleep(_ASK_SLURM_S / 4)
        return state

    def state(self) -> str:
        """Slurm's state of the job."""
        shown = self.cluster.exec(["scontrol", "show", "job", self.job]).out
        words = [word for word in shown.split() if word.startswith("JobState=")]
        return words[0].partition("=")[2] if words else "GONE"

    def curve(self) -> dict[int, tuple[float, str]]:
        """{training step: (loss, samples)}; raises when a repeated step differs."""
        found: dict[int, tuple[float, str]] = {}
        for line in self.metrics:
            step, value = int(line["step"]), (line["loss"], line["samples"])
            if found.setdefault(step, value) != value:
                raise ValueError(f"training step {step} differs: {found[step]} {value}")
        return found

    def story(self) -> str:
        """What the job said and wrote, for a failure message."""
        shown = self.cluster.exec(["scontrol", "show", "job", self.job])
        nodes = self.cluster.exec(["sinfo", "-N", "-o", "%N %T %E"])
        said = self.output.read_text()[-3000:] if self.output.exists() else "(no output)"
        said += f"\n--- Slurm\n{shown.out or shown.err}{nodes.out or nodes.err}"
        logs = sorted(self.run_dir.glob("logs/attempt_*/*.log"))
        tails = [f"--- {path}\n{path.read_text()[-1500:]}" for path in logs[-4:]]
        guards = self.run_dir / "logs" / "guards.log"
        if guards.exists():
            tails.append(f"--- {guards}\n{guards.read_text()[-1500:]}")
        return "\n".join([said, *tails])

    def cancel(self) -> None:
        """End the job, whatever its state."""
        self.cluster.exec(["scancel", self.job])
        self.wait_state(ENDED, 60)


def outlast_the_fault(recipe: Path, more: int = 40) -> None:
    """Let a copy of the recipe of ten lines train on until it was restarted, then `more` steps.

    However slow the machine, a first attempt is not done before the fault was noticed.
    """
    path = recipe / "recipe.yaml"
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    (command,) = facts["commands"]
    goal = f'$(( MUSTER_ATTEMPT == 1 ? 100000 : $(cat "$MUSTER_RESUME/step") + {more} ))'
    command["run"] += f" {goal}"
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")


def submit(
    cluster: LocalCluster,
    recipe: Path,
    *arguments: str,
    options: Sequence[str] = (),
    run_dir: Path | None = None,
    user: str | None = None,
) -> Training:
    """sbatch a recipe's own run.sbatch.

    Args:
        cluster: where.
        recipe: the recipe's folder, on the shared file system.
        arguments: for `muster run`, "--" and those for the training command included.
        options: for sbatch.
        run_dir: passed as --run-dir; default: the recipe's own runs/ folder.
        user: submit as this ordinary user.
    """
    output = recipe / "job-%j.out"
    placed = ["--run-dir", str(run_dir)] if run_dir else []
    argv = ["sbatch", "--parsable", f"--output={output}", *options]
    argv += [str(recipe / "run.sbatch"), *placed, *arguments]
    done = cluster.exec(argv, user=user)
    if done.rc != 0:
        raise RuntimeError(f"sbatch: {done.err or done.out}")
    job = done.out.strip().split(";")[0]
    return Training(
        cluster,
        job,
        run_dir or recipe / "runs" / job,
        Path(str(output).replace("%j", job)),
    )
