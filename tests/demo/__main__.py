"""Lose three nodes in three ways, touch nothing, and get the same training bit for bit.

    nox -s demo                      about three minutes on two cores
    python -m tests.demo --steps 200

1. A real Slurm of 8 nodes comes up on this machine; one node is already out of service.
2. The Llama 2 recipe is copied and submitted for 2 nodes and 1 spare.
3. A worker loses power; a GPU falls off the bus of another; then the batch host loses power.
4. The lost nodes are replaced by `muster watch` and return to service.
5. The same training runs uninterrupted; every loss and every sample is compared.

Leaves runs/demo/{summary.json,report.html,report.png}. Exit code 0 only if every fault was
recovered, every loss is equal bit for bit, and the nodes are back.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from muster.cluster import LocalCluster, Shape
from muster.errors import MusterError
from resume.durable import append_line, write_json
from resume.report import write_report
from tests.demo.console import Console
from tests.harness.training import Training, submit

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "llama2_fsdp"
OUT_OF_SERVICE = "n8"
RECOVERY_LIMIT_S = 180


@dataclass
class Demo:
    """One performance."""

    out: Path
    steps: int
    every: int
    console: Console = field(default_factory=Console)
    lost_nodes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = Shape(out_of_service=(OUT_OF_SERVICE,), settings=(("HealthCheckInterval", "5"),))
        self.cluster = LocalCluster(f"demo{os.getpid()}", shape)

    def perform(self) -> int:
        """All of it; returns the exit code."""
        self.console.say("a Slurm cluster of 8 nodes comes up on this machine")
        self.cluster.up(owner_pid=os.getpid())
        shutil.rmtree(self.out, ignore_errors=True)  # now that a new one will follow
        self.out.mkdir(parents=True)
        try:
            before = self.states()
            self.console.say(f"8 nodes, {OUT_OF_SERVICE} is out of service; muster watch starts")
            watch = self.start_watch()
            try:
                run = self.submit("faulted")
                self.break_things(run)
                after = self.wait_for_service(run)
            finally:
                watch.terminate()
                watch.wait(30)
            self.write_nodes(run, before, after)
            baseline = self.uninterrupted()
        finally:
            self.cluster.down()
        return self.conclude(run, baseline)

    def states(self) -> dict[str, str]:
        """Node -> Slurm's state in words for the report."""
        return {
            node: f"{state} (out of service)" if node == OUT_OF_SERVICE else state
            for node, state in self.cluster.states().items()
        }

    def start_watch(self) -> subprocess.Popen[bytes]:
        """`muster watch` on the head node, as a site runs it."""
        argv = ["muster", "watch", "--interval", "1"]
        argv += ["--log", str(self.out / "watch.jsonl"), "--state", str(self.out / "watch.json")]
        with (self.out / "watch.log").open("wb") as log:
            return subprocess.Popen(
                self.cluster.exec_argv(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def submit(self, name: str) -> Training:
        """Copy the recipe as a user does, and sbatch the copy."""
        copy = self.out / name / "my copy"
        ignore = shutil.ignore_patterns("runs", "data", "__pycache__")
        shutil.copytree(RECIPE, copy, ignore=ignore)
        overrides = [f"train.steps={self.steps}", f"checkpoint.every={self.every}"]
        run_dir = self.out / name / "run"
        run = submit(self.cluster, copy, "--", *overrides, run_dir=run_dir)
        self.console.new_run()
        self.console.say(
            f"sbatch '{copy.relative_to(ROOT)}/run.sbatch': job {run.job}, 2 + 1 nodes"
        )
        return run

    def break_things(self, run: Training) -> None:
        """The three faults, each as soon as training has a checkpoint after the one before.

        Training goes on until the health check has found the GPU: what is left of it has to
        outlast that on a fast machine too.
        """
        gap = self.every + 2
        self.until_step(run, gap)
        worker = self.worker(run)
        self.fault(run, f"power loss of {worker}", worker, "node_lost")
        self.cluster.node("kill", worker, silent=True)
        self.until_back(run, 1, gap)
        gpu_node = self.worker(run)
        self.fault(run, f"GPU fault on {gpu_node}", gpu_node, "node_unfit")
        self.cluster.node("gpu-break", gpu_node, gpu=3)
        self.until_back(run, 2, gap)
        batch_host = str(run.events("supervisor_started")[-1]["host"])
        self.fault(run, f"power loss of {batch_host} (batch host)", batch_host, "batch_host_lost")
        self.cluster.node("kill", batch_host, silent=True)
        self.follow(run, "the end", lambda: run.journal[-1]["event"] in ("done", "stopped"))

    def worker(self, run: Training) -> str:
        """A node that trains and is not the batch host."""
        host = run.events("supervisor_started")[-1]["host"]
        nodes = run.events("attempt_started")[-1]["nodes"]
        return str(next(node for node in reversed(nodes) if node != host))

    def fault(self, run: Training, name: str, node: str, kind: str) -> None:
        """Say and record that something is broken now."""
        self.console.say(f"BREAK  {name}")
        self.lost_nodes.append(node)
        facts = {"time": time.time(), "name": name, "node": node, "kind": kind}
        append_line(run.run_dir / "faults.jsonl", facts)

    def until_step(self, run: Training, step: int) -> None:
        self.follow(run, f"training step {step}", lambda: run.last_step() >= step)

    def until_back(self, run: Training, incidents: int, gap: int) -> None:
        """Until training goes on after that many incidents, and has gone on for a while."""

        def goes_on() -> bool:
            attempts = run.events("attempt_started")
            if len(run.events("incident")) < incidents or len(attempts) < incidents + 2:
                return False
            now = attempts[-1]
            return bool(run.last_step(now["attempt"]) >= now["resume_step"] + gap)

        self.follow(run, "training to go on", goes_on)

    def follow(self, run: Training, what: str, condition: Callable[[], object]) -> None:
        """Show progress until the condition holds; give up when the run stopped."""
        deadline = time.monotonic() + RECOVERY_LIMIT_S
        while not condition():
            self.console.follow(run, self.steps)
            self.console.follow_watch(self.out / "watch.jsonl")
            ended = [entry for entry in run.journal if entry["event"] in ("done", "stopped")]
            if ended or time.monotonic() > deadline:
                raise TimeoutError(f"{what}: it did not come\n{run.story()}")
            time.sleep(0.2)
        self.console.follow(run, self.steps)

    def wait_for_service(self, run: Training) -> dict[str, str]:
        """Until the lost nodes are idle again, with another boot id."""
        self.console.say(f"training is done; waiting for {', '.join(self.lost_nodes)} to be back")
        run.wait(
            "the lost nodes in service",
            lambda: all(self.cluster.states().get(node) == "idle" for node in self.lost_nodes),
            RECOVERY_LIMIT_S,
        )
        return self.states()

    def write_nodes(self, run: Training, before: dict[str, str], after: dict[str, str]) -> None:
        """nodes.json for the report: what `muster watch` says that it has replaced."""
        lines = [json.loads(s) for s in (self.out / "watch.jsonl").read_text().splitlines()]
        self.console.follow_watch(self.out / "watch.jsonl")
        returned = {e.get("node") for e in lines if e["event"] == "returned"}
        replaced = [node for node in self.lost_nodes if node in returned]
        facts = {"before": before, "after": after, "replaced": replaced}
        write_json(run.run_dir / "nodes.json", facts)

    def uninterrupted(self) -> Training:
        """The same training with nothing broken."""
        self.console.say("the same training again, uninterrupted, to compare")
        run = self.submit("uninterrupted")
        self.follow(run, "the end", lambda: bool(run.events("done")))
        return run

    def conclude(self, run: Training, baseline: Training) -> int:
        """Report, summary, verdict."""
        summary = write_report(run.run_dir, self.out, baseline=baseline.run_dir)
        facts = summary.as_json()
        print(f"\n{summary.text}\n")
        for name in ("report.html", "report.png", "summary.json"):
            print(f"  {(self.out / name).relative_to(ROOT)}")
        weights = [json.loads((r.run_dir / "DONE").read_text())["weights"] for r in (run, baseline)]
        checks = {
            "every fault was recovered": facts["recovered"] == facts["injected"] == 3,
            "every loss equals the uninterrupted run's bit for bit": facts["loss_identical"],
            "every training step consumed the same samples": facts["samples_identical"],
            "the final weights are equal bit for bit": weights[0] == weights[1],
            "every lost node was replaced": facts["nodes_replaced"] == len(self.lost_nodes),
        }
        print()
        for text, holds in checks.items():
            print(f"  {'yes' if holds else 'NO '}  {text}")
        return 0 if all(checks.values()) else 1


def main() -> int:
    """Perform; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s demo --", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=120, help="training steps (120)")
    parser.add_argument(
        "--every", type=int, default=5, help="checkpoint every N training steps (5)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "demo")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        return Demo(arguments.out.absolute(), arguments.steps, arguments.every).perform()
    except MusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except TimeoutError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
