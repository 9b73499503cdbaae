"""One attempt: launch the command on chosen nodes, watch it, clean up after it, judge it."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from muster.errors import UnavailableError
from muster.recipe import Command
from resume import lease, rundir, skips
from resume.allocation import SHARED_BY
from resume.changes import of_these_settings
from resume.durable import last_line, read_lines
from resume.launch import Launched, LaunchPlan, launch
from resume.loss_guard import LossWatch, comparable
from resume.metrics import MetricsTail
from resume.sight import Wanted
from resume.verdict import CAUSES, Evidence, Verdict, decide, unexplained
from resume.watch import Watch

if TYPE_CHECKING:
    from resume.checkpoint import Picked
    from resume.supervisor import Supervisor

_COMPARED_BYTES = 16 << 20  # of metrics.jsonl: some ten thousand training steps
_READY_S = 15.0
_CLEAN_S = 15.0
_NOT_SAID = ("slurmstepd", "srun: ", "Terminated", "Killed")  # by Slurm and the shell
_SAID_CHARS, _ASKED_RANKS = 300, 16


@dataclass(frozen=True)
class Attempt:
    """What one attempt is made of."""

    supervisor: Supervisor
    command: Command
    nodes: Sequence[str]
    picked: Picked

    def run(self) -> Verdict:
        """Launch, watch, end, judge. A node that does not get ready is out; then try again."""
        s = self.supervisor
        number = s.state.attempts + 1
        beat_dir = rundir.beat_dir(s.job.job_id, s.token, number)
        not_ready = self.get_ready(number, beat_dir)
        if not_ready is not None:
            return not_ready
        views = s.fleet.nodes
        plan = LaunchPlan(
            run_dir=s.run_dir,
            recipe_dir=s.recipe_dir,
            attempt=number,
            token=s.token,
            command=self.command.run,
            nodes=self.nodes,
            ranks_per_node=s.ranks_per_node if self.command.every_node else 1,
            cpus_per_rank=s.cpus_per_rank,
            resume=self.picked.path,
            beat_dir=beat_dir,
            master_addr=s.allocation.node_watch.address(self.nodes[0]),
            master_port=views[self.nodes[0]].port,
            step=s.step,
            skip=skips.text(s.state.windows),
            container=s.container,
        )
        return self._launch_and_watch(plan)

    def get_ready(self, number: int, beat_dir: Path) -> Optional[Verdict]:
        """None once every node has its beat folder, and sees the checkpoint if there is one."""
        s, path = self.supervisor, self.picked.path
        local = s.custody.local_folder
        see = Wanted(path, self.picked.sha256, local=local) if path is not None else None
        s.fleet.prepare(number, beat_dir, fresh=True, see=see)
        views = s.fleet.nodes

        def waited_for() -> set[str]:
            late = [name for name in self.nodes if views[name].ready != number]
            return set(late) - set(s.allocation.without_answer(late))

        limit_s = _READY_S + (see.longest_s if see is not None else 0.0)
        s.wait_for(lambda: not waited_for(), limit_s)
        mute = [name for name in self.nodes if views[name].ready != number]
        for name in mute:
            s.allocation.condemn(name, "its guard does not answer")
        if mute:
            s.note_incident("node_lost", mute[-1], "its guard does not answer")
            return Verdict("swap", "node_lost", "a node did not get ready", mute[-1])
        blind = {name: views[name].unseen for name in self.nodes if views[name].unseen}
        return self._blind(blind) if blind else None

    def _blind(self, unseen: Mapping[str, str]) -> Verdict:
        """The batch host has verified it: it is the node's fault, or, of many, the storage's."""
        s = self.supervisor
        name, problem = next(iter(unseen.items()))
        why = f"does not see {self.picked.path}: {problem}"
        if len(unseen) >= SHARED_BY:
            s.note_incident("storage", None, f"{len(unseen)} nodes alike: {name} {why}")
            fix = "see that all nodes mount it alike; then sbatch with the same --run-dir"
            return Verdict("wait", "storage", f"node {name} {why}", None, fix, 74)
        for one, its_problem in unseen.items():
            s.allocation.condemn(one, f"does not see {self.picked.path}: {its_problem}")
        s.note_incident("node_unfit", name, why)
        return Verdict("swap", "node_unfit", why, name)

    def _launch_and_watch(self, plan: LaunchPlan) -> Verdict:
        s = self.supervisor
        start = f"from training step {self.picked.step}" if self.picked.step else "from the start"
        where = f"{','.join(plan.nodes)} ({plan.num_ranks} ranks)"
        s.say(f"attempt {plan.attempt}: {self.command.name} on {where} {start}")
        s.note(
            "attempt_started",
            attempt=plan.attempt,
            command=self.command.name,
            nodes=list(plan.nodes),
            ranks=plan.num_ranks,
            resume_step=self.picked.step,
            resume_attempt=self.picked.attempt,
            resume_local=sum(s.fleet.nodes[name].local for name in plan.nodes),
        )
        s.guarded = (plan.attempt, plan.beat_dir)
        with contextlib.suppress(OSError):  # a full disk: then only the token fences
            lease.launch(s.run_dir, s.token, plan.attempt)
        started_at = time.time()
        try:
            launched = launch(plan)
        except OSError as error:
            return self._not_launched(plan, error)
        s.custody.begin()
        metrics = MetricsTail(s.run_dir / "metrics.jsonl", plan.attempt)
        watch = Watch(s, launched, self.command, metrics, loss_watch=self._loss_watch())
        try:
            watch.until_over()
            detected_at = time.time()
            evidence = watch.evidence()
        finally:
            launched.end()
            s.custody.end()
        evidence = self._clean(plan.attempt, evidence)
        s.guarded = None
        evidence, verdict = self._judge(evidence, started_at)
        if verdict.action == "swap" and verdict.node is not None:
            s.allocation.condemn(verdict.node, verdict.why)
        verdict = with_last_words(verdict, evidence, plan.log_dir)
        self._record(launched, metrics, evidence, verdict, detected_at)
        return verdict

    def _not_launched(self, plan: LaunchPlan, error: OSError) -> Verdict:
        """No srun was started at all: its log cannot be written, or there is no srun."""
        s = self.supervisor
        s.guarded = None
        if error.filename == "srun":
            fix = "put Slurm's client programs on PATH of the batch script"
            raise UnavailableError("srun", "not on PATH", fix) from error
        why = f"{plan.log_dir} cannot be written: {error.strerror}"
        s.note_incident("storage", None, why)
        verdict = Verdict("wait", "storage", why, None, "free space, then sbatch again", 74)
        s.note(
            "attempt_ended",
            attempt=plan.attempt,
            action=verdict.action,
            cause=verdict.cause,
            why=why,
        )
        return verdict

    def _judge(self, evidence: Evidence, started_at: float) -> tuple[Evidence, Verdict]:
        """The verdict; a failure that nothing explains may be a sick node's, so they are asked."""
        s = self.supervisor
        verdict = decide(evidence, s.recipe.budget)
        if not unexplained(verdict):
            return evidence, verdict
        suspect = s.allocation.ask_suspects(self.nodes, started_at)
        if suspect is None or suspect.verdict not in ("hardware", "infrastructure"):
            return evidence, verdict
        if suspect.verdict == "infrastructure":
            evidence = replace(evidence, infrastructure=suspect.why)
        else:
            blamed = [name for name in (suspect.node, *suspect.also) if name is not None]
            for name in blamed:
                s.allocation.condemn(name, suspect.why)
            unfit = dict.fromkeys(blamed, suspect.why)
            usable = len(s.allocation.usable())
            evidence = replace(evidence, unfit=unfit, num_usable=usable)
        return evidence, decide(evidence, s.recipe.budget)

    def _loss_watch(self) -> Optional[LossWatch]:
        """Compares with what earlier attempts have seen; None where the recipe does not ask."""
        s = self.supervisor
        rules = s.recipe.loss_guard
        if rules.action == "off" or self.command.done_by != "DONE":
            return None
        lines = read_lines(s.run_dir / "metrics.jsonl", last_bytes=_COMPARED_BYTES)
        same = of_these_settings(lines, s.state.changed_in, self.picked.step)
        return LossWatch(rules, self.picked.step, comparable(same, s.state.windows))

    def _clean(self, attempt: int, evidence: Evidence) -> Evidence:
        """No rank of this attempt may live when the next one starts; a node may die meanwhile."""
        s = self.supervisor
        for name in evidence.lost:
            s.allocation.condemn(name, "does not respond")
        for name, reason in evidence.unfit.items():
            s.allocation.condemn(name, reason)
        rest = [name for name in self.nodes if name not in evidence.lost]
        dead: list[str] = []

        def is_clean(name: str) -> bool:
            view = s.fleet.nodes.get(name)
            return view is not None and view.clean == attempt

        def all_clean() -> bool:
            s.fleet.order(do="kill", attempt=attempt)  # again: guards may have been replaced
            left = [name for name in rest if not is_clean(name) and name not in dead]
            dead.extend(s.allocation.without_answer(left))
            return not set(left) - set(dead)

        s.wait_for(all_clean, _CLEAN_S)
        for name in rest:
            if name in dead:
                s.allocation.condemn(name, "does not respond")
            elif not is_clean(name):
                s.allocation.condemn(name, f"ranks of attempt {attempt} cannot be killed")
        return replace(
            evidence, lost=(*evidence.lost, *dead), num_usable=len(s.allocation.usable())
        )

    def _record(
        self,
        launched: Launched,
        metrics: MetricsTail,
        evidence: Evidence,
        verdict: Verdict,
        detected_at: float,
    ) -> None:
        s, attempt = self.supervisor, launched.plan.attempt
        if verdict.cause is not None:
            s.note(
                "incident",
                attempt=attempt,
                cause=verdict.cause,
                node=verdict.node,
                detail=verdict.why,
                last_step=metrics.last_step,
                last_step_time=metrics.last_time,
                detected_at=detected_at,
            )
        s.note(
            "attempt_ended",
            attempt=attempt,
            action=verdict.action,
            cause=verdict.cause,
            node=verdict.node,
            why=verdict.why,
            last_step=metrics.last_step,
            repeatable=verdict.repeatable,
            blamed=evidence.blamed_node,
            kind=CAUSES[verdict.cause][0] if verdict.cause else None,
            resume_action=CAUSES[verdict.cause][1] if verdict.cause else None,
            exit_codes={str(rank): code for rank, code in evidence.exits.items()},
        )


def with_last_words(verdict: Verdict, evidence: Evidence, log_dir: Path) -> Verdict:
    """A stop that tells what the rank to blame said last: the cause stands there, or near it.

    The verdict itself never comes from a log; this is for the person who reads it.
    """
    exits, blamed = evidence.exits, evidence.first_failed
    if verdict.action != "stop" or blamed is None:
        return verdict
    # Ranks that fail together let one of them speak, not always the one that was seen first.
    alike = [blamed, *(r for r, code in exits.items() if code == exits[blamed] and r != blamed)]
    for rank in alike[:_ASKED_RANKS]:
        log = log_dir / f"rank_{rank}.log"
        said = _last_line(log)
        if said:
            what, _, fix = said.partition(" Fix: ")
            why = f"{verdict.why}: {what[:_SAID_CHARS].rstrip('.')}"
            return replace(verdict, why=why, fix=fix or f"see {log}")
    return verdict


def _last_line(log: Path) -> str:
    """The last line with a fix, else the last one that the program wrote."""
    with_fix = last_line(log, lambda line: " Fix: " in line and not line.startswith(_NOT_SAID))
    return with_fix or last_line(log, lambda line: not line.startswith(_NOT_SAID))


def with_arguments(command: Command, arguments: Sequence[str]) -> Command:
    """The command with the user's extra arguments; only the one that trains takes them."""
    if not arguments or command.done_by != "DONE":
        return command
    line = f"{command.run} {shlex.join(arguments)}"
    return Command(command.name, line, command.every_node, command.done_by, command.time_limit_s)
