"""One fault on one recipe: submit, train, strike, wait, judge."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from muster.cluster import LocalCluster, Shape
from muster.errors import MusterError
from resume import report
from tests.faults import judge, twin
from tests.faults.fault import Fault, goes_on
from tests.faults.judge import Left, Row
from tests.faults.stage import Stage
from tests.faults.twin import EVERY, RANKS, START_S, Twin
from tests.harness.nodes import back_to_service
from tests.harness.training import Training, submit

SHAPE = Shape(
    nodes=5,
    boot_s=0.2,
    settings=(
        # Only a broken GPU waits for it, and several clusters' checks would take the CPU from all.
        ("HealthCheckInterval", "20"),
        ("PreemptType", "preempt/partition_prio"),
        ("PreemptMode", "REQUEUE"),
        ("PartitionName", "urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF"),
        ("PartitionName", "requeued Nodes=ALL PreemptMode=REQUEUE GraceTime=30"),
        ("PartitionName", "cancelled Nodes=ALL PreemptMode=CANCEL GraceTime=30"),
    ),
)


@dataclass(frozen=True)
class Rehearsal:
    """Where one recipe meets its faults."""

    cluster: LocalCluster
    twin: Twin
    folder: Path  # for copies and runs, on the shared file system

    def undisturbed(self) -> Left:
        """The run that nothing happens to; trained once, then remembered in the folder.

        Raises:
            RuntimeError: it did not get through.
        """
        run_dir = self.folder / "undisturbed" / "run"
        if not (run_dir / "DONE").exists():
            shutil.rmtree(run_dir.parent, ignore_errors=True)
            run = self._submit(Fault(lambda _: None, goes_on()), run_dir.parent, RANKS)
            if run.wait_end(600) != "done" or run.events("incident"):
                raise RuntimeError(f"{self.twin.name} fails undisturbed\n{run.story()}")
        return left(run_dir)

    def meet(self, fault: Fault) -> Row:
        """Strike once the run has a checkpoint, and judge what came of it."""
        began = time.monotonic()
        calm = self.undisturbed()
        place = self.folder / fault.strike.__name__
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        stage = self._set(fault, place)
        story = ""
        try:
            with stage.undo:
                stage.run.wait_step(EVERY + 3, timeout_s=30 + self.twin.start_s)
                fault.strike(stage)
                stage.run.wait_end(fault.limit_s + 2 * (self.twin.start_s - START_S))
        except (MusterError, TimeoutError, LookupError, RuntimeError) as error:
            stage.problems.append(str(error).splitlines()[0])
            story = str(error)
        row = self._row(fault, stage, calm, time.monotonic() - began)
        if row.problems:
            (place / "story.txt").write_text(story or stage.run.story(), encoding="utf-8")
        if fault.own_disk:  # the disk goes with the cluster
            keep = shutil.ignore_patterns("checkpoints")
            shutil.copytree(stage.run.run_dir, place / "run", ignore=keep)
        tidy(self.cluster)
        return row

    def _set(self, fault: Fault, place: Path) -> Stage:
        """Submit, with sabotage armed before a rank can look."""
        own, fuse = fault.sabotage, place / "fuse"
        for rank in (own.ranks or range(fault.ranks)) if own and own.armed else ():
            fuse.with_name(f"fuse.{rank}").touch()
        run = self._submit(fault, place, fault.ranks)
        again = partial(self._submit, fault, place)
        return Stage(self.cluster, run, place / "my copy", fuse, fault, again)

    def _submit(self, fault: Fault, place: Path, ranks: int) -> Training:
        """sbatch a copy of the recipe; again for a later job of the same run."""
        copy = place / "my copy"
        if not copy.exists():
            twin.copy(self.twin, copy, fault, place / "fuse")
        run_dir = self.cluster.shared_disk / place.name if fault.own_disk else place / "run"
        options, words = list(fault.options), [*self.twin.patience, *fault.words]
        if ranks != RANKS:
            options.append(f"--nodes={ranks}")
            words.append(f"nodes={ranks}")
        words += ["--", *self.twin.training(ranks)]
        run = submit(self.cluster, copy, *words, options=options, run_dir=run_dir)
        seen = self.cluster.seen_from_here(run_dir) if fault.own_disk else run_dir
        return Training(self.cluster, run.job, seen, run.output)

    def _row(self, fault: Fault, stage: Stage, calm: Left, wall_s: float) -> Row:
        found = list(stage.problems)
        facts = {}
        run_dir = stage.run.run_dir
        if (run_dir / "journal.jsonl").exists():
            facts = judge.seen(report.summarise(run_dir), left(run_dir), calm)
            found += judge.problems(
                fault.expected, facts, same_layout=fault.ranks == RANKS, every=EVERY
            )
        return Row(
            area=fault.area,
            fault=fault.name,
            emulates=fault.emulates,
            recipe=self.twin.name,
            expected=str(fault.expected),
            wall_s=round(wall_s, 1),
            problems=tuple(found),
            **facts,
        )


def left(run_dir: Path) -> Left:
    """What a run left behind."""
    run = Training(LocalCluster(), "", run_dir, run_dir)
    done = run_dir / "DONE"
    return Left(run.journal, run.metrics, json.loads(done.read_text()) if done.exists() else None)


def tidy(cluster: LocalCluster) -> None:
    """No job is left, and every node is healthy, idle and in service."""
    for state in ("RUNNING", "PENDING", "SUSPENDED"):
        cluster.exec(["scancel", f"--state={state}"])
    back_to_service(cluster)
