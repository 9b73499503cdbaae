"""What a fault has at hand when it strikes: a run that trains, on a cluster that may be broken."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from muster import slurm
from muster.cluster import LocalCluster
from resume.durable import append_line
from tests.faults.fault import Fault
from tests.harness import processes
from tests.harness.training import Training


@dataclass
class Stage:
    """One run under attack."""

    cluster: LocalCluster
    run: Training
    recipe: Path  # the copy that was submitted
    fuse: Path  # while FUSE.<rank> exists, sabotage in that rank is armed
    fault: Fault
    resubmit: Callable[[int], Training]  # with so many ranks
    problems: list[str] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)  # what has to be put right at the end
    _attempts_before: int = 0  # the fault

    # -- who is who ------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """Nodes of the newest attempt, in the order of their ranks."""
        return list(self.run.events("attempt_started")[-1]["nodes"])

    @property
    def batch_host(self) -> str:
        """Where the supervisor runs."""
        return str(self.run.events("supervisor_started")[-1]["host"])

    @property
    def worker(self) -> str:
        """A node that trains and is not the batch host."""
        workers = [node for node in self.nodes if node != self.batch_host]
        if not workers:
            raise LookupError("no node but the batch host trains")
        return workers[-1]

    # -- doing something to it -------------------------------------------------------------------

    def hit(self, node: str | None = None) -> None:
        """The fault happens now: the moment from which recovery is timed."""
        self._attempts_before = len(self.run.events("attempt_started"))
        facts = {"time": time.time(), "name": self.fault.name, "node": node, "kind": "fault"}
        append_line(self.run.run_dir / "faults.jsonl", facts)

    def break_node(self, verb: str, node: str, **options: object) -> None:
        """A node verb of `muster cluster`, at the moment of the fault."""
        self.hit(node)
        self.cluster.node(verb, node, **options)  # type: ignore[arg-type]

    def signal_rank(self, rank: int, number: int) -> None:
        """Send a signal to a rank, at the moment of the fault."""
        self.hit()
        processes.signal_rank(self.run, rank, number)

    def kill_rank(self, rank: int = 0) -> None:
        """End a rank, for faults that show at the restart.

        Rank 0, which publishes: Slurm wakes and terminates the others, and a recipe of which rank 0
        saves alone would publish one more checkpoint on its way out.
        """
        self.signal_rank(rank, signal.SIGKILL)

    def arm(self, ranks: Sequence[int] = (0, 1)) -> None:
        """From now on sabotage happens when its moment comes."""
        for rank in ranks:
            self.fuse.with_name(f"{self.fuse.name}.{rank}").touch()

    def disarm(self) -> None:
        """From now on sabotage does not happen."""
        for fuse in self.fuse.parent.glob(f"{self.fuse.name}.*"):
            fuse.unlink(missing_ok=True)

    def submit_again(self, ranks: int | None = None) -> None:
        """A new job on the same RUN_DIR; from now on it is the one that counts."""
        self.run = self.resubmit(ranks or self.fault.ranks)

    # -- waiting ---------------------------------------------------------------------------------

    def linger(self, duration_s: float) -> None:
        """Let the fault last: for faults that are a duration, never to wait for something."""
        time.sleep(duration_s)

    def wait_checkpoints(self, count: int) -> None:
        """Until so many are published."""
        self.run.wait(f"{count} checkpoints", lambda: len(self.run.checkpoints()) >= count)

    def wait_new_checkpoint(self) -> None:
        """Until there is one that is newer than all of now."""
        before = self.run.checkpoints()[:1]
        self.run.wait("a new checkpoint", lambda: self.run.checkpoints()[:1] > before)

    def wait_restart(self) -> None:
        """Until an attempt has started since the fault."""
        self.run.wait_event("attempt_started", self._attempts_before + 1)

    def wait_said(self, word: str) -> None:
        """Until the supervisor says a word, since the journal may be out of its reach."""
        self.run.wait(f"'{word}' to be said", lambda: word in self.run.output.read_text())

    def wait_held(self) -> None:
        """Until Slurm holds the job after a launch that failed."""
        self.run.wait("a hold", lambda: "requeued_held" in self._job_record().get("Reason", ""))

    def wait_gone(self) -> None:
        """Until no process of the job is left, guards included."""
        self.run.wait("the job's processes to go", lambda: not list(processes.of_job(self.run)))

    # -- looking at it ---------------------------------------------------------------------------

    def hold_at_checkpoint(self) -> Path:
        """The newest of two or more checkpoints; ranks stand still from now on."""
        self.wait_checkpoints(2)
        processes.send(lambda: processes.ranks(self.run), "rank", signal.SIGSTOP)
        return self.run.checkpoints()[0]

    def excluded(self) -> list[str]:
        """Nodes that the job shall not get."""
        return slurm.hostnames(self._job_record().get("ExcNodeList", ""))

    def _job_record(self) -> dict[str, str]:
        return slurm.fields(self.cluster.exec(["scontrol", "show", "job", self.run.job]).out)

    def check(self, text: str, holds: object) -> None:
        """What has to hold besides the end of the run."""
        if not holds:
            self.problems.append(f"not so: {text}")

    def check_set_aside(self, checkpoint: Path) -> None:
        """It was not loaded but renamed, and nothing of it deleted."""
        self.wait_restart()
        names = [event["checkpoint"] for event in self.run.events("set_aside")]
        self.check(f"{checkpoint.name} is set aside", names[:1] == [checkpoint.name])
        kept = checkpoint.with_name(f"{checkpoint.name}.bad1")
        self.check(f"{kept.name} is kept", kept.is_dir())

    def check_resumes_from(self, checkpoint: Path) -> None:
        """The attempt after the fault started there."""
        self.wait_restart()
        step = self.run.events("attempt_started")[self._attempts_before]["resume_step"]
        self.check(f"resumed from {checkpoint.name}, not {step}", step == int(checkpoint.name[5:]))
