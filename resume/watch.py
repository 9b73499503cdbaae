"""Watches one attempt until it is over or must be ended, and collects the evidence.

Nothing is decided here about what comes next; `verdict.decide` does that from the evidence alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from muster.recipe import Command, Hang
from resume.changes import note_changes
from resume.loss_guard import Finding, LossWatch
from resume.metrics import MetricsTail
from resume.verdict import TERMINATED, Evidence, culprit

if TYPE_CHECKING:
    from resume.launch import Launched
    from resume.supervisor import Supervisor

TICK_S = 0.1
_SUSPICIOUS_S = 1.2  # silence that is looked into once something else has gone wrong
_JITTER_S = 0.5  # between one report's way to us and the next one's
_AHEAD_S = 1.5  # what a health check takes on a busy node
_MUTE_FACTOR = 5.0  # a node that answers but whose guard is mute is lost after this x lost_after_s
_EXIT_AFTER_DONE_S = 60.0


@dataclass
class Watch:
    """One attempt under watch."""

    supervisor: Supervisor
    launched: Launched
    command: Command
    metrics: MetricsTail
    started_at: float = field(default_factory=time.monotonic)
    trouble_at: Optional[float] = None  # when a rank that failed or hangs was first seen
    asked: Optional[str] = None
    asked_at: float = 0.0
    done_at: Optional[float] = None
    first_step_seen: bool = False
    lost: list[str] = field(default_factory=list)
    hung: Optional[tuple[int, str, float]] = None  # rank, node, seconds
    revived: set[str] = field(default_factory=set)  # nodes that got a new guard
    loss_watch: Optional[LossWatch] = None  # where the recipe guards its loss
    loss: Optional[Finding] = None

    def until_over(self) -> None:
        """Return as soon as the attempt is finished, or known to be beyond saving."""
        while not self._over():
            self.supervisor.tick()
            time.sleep(TICK_S)
        self.metrics.poll()
        self._note_first_step()

    def _over(self) -> bool:
        self.metrics.poll()
        self._note_first_step()
        if self._done():
            return True
        if self._loss_is_wrong():
            return True
        self._find_lost()
        self._find_hung()
        if self.lost or self._left() or self._settled_trouble() or self._timed_out():
            return True
        self._ask_to_leave()
        return False

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes that train."""
        return self.launched.plan.nodes

    @property
    def exits(self) -> dict[int, int]:
        """Exit codes known so far, first seen first."""
        return self.supervisor.fleet.exits(self.nodes)

    def _note_first_step(self) -> None:
        if self.metrics.first_step is not None and not self.first_step_seen:
            self.first_step_seen = True
            attempt = self.launched.plan.attempt
            changed = note_changes(self.supervisor, attempt, self.metrics.first_step)
            if changed and self.loss_watch is not None:
                self.loss_watch.compare_no_more()
            self.supervisor.note(
                "first_step",
                attempt=attempt,
                step=self.metrics.first_step,
                step_time=self.metrics.first_time,
            )
            self.supervisor.say(f"training from training step {self.metrics.first_step}")

    def _loss_is_wrong(self) -> bool:
        for step, loss in self.metrics.take_losses():
            if self.loss_watch is not None and self.loss is None:
                self.loss = self.loss_watch.take(step, loss)
        return self.loss is not None

    def _done(self) -> bool:
        """DONE is there and the ranks are gone, or had a minute to go."""
        if self.command.done_by != "DONE" or not self.supervisor.done_file.exists():
            return False
        if self.done_at is None:
            self.done_at = time.monotonic()
        gone = self.launched.poll() is not None or self._all_exited()
        return gone or time.monotonic() - self.done_at > _EXIT_AFTER_DONE_S

    def _all_exited(self) -> bool:
        return len(self.exits) == self.launched.plan.num_ranks

    def _left(self) -> bool:
        if self._all_exited() and not any(self.exits.values()):
            return True
        late = time.monotonic() - self.asked_at > self.supervisor.recipe.budget.leave_s
        return self.asked is not None and late

    def _settled_trouble(self) -> bool:
        """A rank failed or hangs, or srun ended, and every node has spoken since.

        So no node is to blame: one that fell silent with its ranks is found lost instead.
        """
        failed = any(self.exits.values()) or self.launched.poll() is not None
        if not failed and self.hung is None:
            self.trouble_at = None  # the rank that hung goes on
            return False
        if self.trouble_at is None:
            self.trouble_at = time.monotonic()
        since = time.monotonic() - self.trouble_at
        fleet = self.supervisor.fleet
        return since > 0 and all(fleet.silent_s(name) < since for name in self.nodes)

    @property
    def _quiet_s(self) -> float:
        """Silence of a node that is looked into."""
        return _SUSPICIOUS_S if self.trouble_at is not None else self.supervisor.site.lost_after_s

    def _is_mute(self, name: str) -> bool:
        s = self.supervisor
        return name != s.host and s.fleet.silent_s(name) > self._quiet_s

    def _find_lost(self) -> None:
        s = self.supervisor
        soon_s = max(s.site.lost_after_s / 2, s.site.lost_after_s - _AHEAD_S)
        if any(s.fleet.silent_s(name) > soon_s for name in self.nodes if name != s.host):
            s.allocation.check_ahead()  # a spare's answer is there when the node counts as lost
        quiet = [name for name in self.nodes if self._is_mute(name)]
        watch = s.allocation.node_watch
        self.lost = [name for name in self.nodes if watch.lost(name) and name != s.host]
        unknown = [name for name in quiet if name not in self.lost]
        others = [name for name in self.nodes if name != s.host]
        if unknown:
            mute_s = _MUTE_FACTOR * s.site.lost_after_s
            with ThreadPoolExecutor(len(unknown)) as pool:
                for name, alive in zip(unknown, pool.map(s.allocation.answers, unknown)):
                    if not alive or s.fleet.silent_s(name) > mute_s:
                        self.lost.append(name)
        if others and set(others) <= {*self.lost} & {*unknown} and watch.away():
            self.lost = []  # nobody answers, not even Slurm: this node is the one that is cut off
            s.sit_out()
        self._replace_mute_guards([name for name in unknown if name not in self.lost])

    def _replace_mute_guards(self, mute: list[str]) -> None:
        """A guard may die alone, and a node that lives must not be blamed: once, start new ones."""
        s = self.supervisor
        if s.fleet.silent_s(s.host) > s.site.lost_after_s and s.host in self.nodes:
            mute = [*mute, s.host]
        limit = s.site.lost_after_s
        new = [n for n in mute if n not in self.revived and s.fleet.silent_s(n) > limit]
        if new and not self.lost:
            self.revived.update(new)
            s.fleet.drop()

    def _find_hung(self) -> None:
        hang, plan = self.supervisor.recipe.hang, self.launched.plan
        beats = self.supervisor.fleet.beats(self.nodes)
        if self.command.done_by != "DONE" and all(p == "setup" for p, *_ in beats.values()):
            return  # such a command need not beat: its time limit is what watches it
        slack_s = 0.0 if self.trouble_at is None else _JITTER_S
        self.hung = find_hung(beats, self.exits, hang, self.metrics.p99_s(), slack_s)
        if self.command.done_by != "DONE":
            return
        age = time.monotonic() - self.started_at
        views = self.supervisor.fleet.nodes  # a guard that was just started knows no rank yet
        mute = [
            rank
            for rank in range(plan.num_ranks)
            if rank not in beats and rank not in self.exits
            if (view := views.get(plan.nodes[rank // plan.ranks_per_node])) and view.reported
        ]
        if mute and age > hang.setup_s:
            self.hung = (mute[0], plan.nodes[mute[0] // plan.ranks_per_node], age)

    def _timed_out(self) -> bool:
        limit = self.command.time_limit_s
        return limit is not None and time.monotonic() - self.started_at > limit

    def _ask_to_leave(self) -> None:
        if self.asked is not None:
            return
        self.asked = self.supervisor.must_leave() or ("node_unfit" if self.unfit() else None)
        if self.asked is None:
            return
        self.asked_at = time.monotonic()
        self.supervisor.say(f"ranks are asked to save and leave ({self.asked})")
        order = {"attempt": self.launched.plan.attempt, "signal": "SIGUSR2"}
        self.supervisor.fleet.order(do="signal", **order)

    def _asked_by_slurm(self) -> Optional[str]:
        """Ranks that left by themselves, or of a SIGTERM, may have heard of a preemption first."""
        if self.exits and set(self.exits.values()) <= {0, TERMINATED}:
            self.supervisor.allocation.node_watch.refresh()
            return self.supervisor.must_leave()
        return None

    def unfit(self) -> dict[str, str]:
        """Training nodes that muster's health check has condemned, with its reason."""
        reasons = {
            name: self.supervisor.allocation.node_watch.condemned(name) for name in self.nodes
        }
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def evidence(self) -> Evidence:
        """All that is known now."""
        s, exits, unfit = self.supervisor, self.exits, self.unfit()
        gone = {*self.lost, *unfit}
        to_blame = culprit(exits)
        per_node = self.launched.plan.ranks_per_node
        blamed = self.nodes[to_blame // per_node] if to_blame is not None else None
        views = s.fleet.nodes
        return Evidence(
            num_ranks=self.launched.plan.num_ranks,
            num_nodes=len(self.nodes),
            num_usable=len([name for name in s.allocation.usable() if name not in gone]),
            exits=exits,
            first_failed=to_blame,
            launcher_rc=self.launched.poll(),
            done_file=self.command.done_by == "DONE" and s.done_file.exists(),
            done_by_exit=self.command.done_by == "exit",
            lost=tuple(self.lost),
            unfit=unfit,
            hung_rank=self.hung[0] if self.hung else None,
            hung_node=self.hung[1] if self.hung else None,
            hung_s=self.hung[2] if self.hung else 0.0,
            timed_out=self._timed_out(),
            asked_to_leave=self.asked or self._asked_by_slurm(),
            oom_nodes=tuple(n for n in self.nodes if n in views and views[n].kills),
            blamed_node=self.hung[1] if self.hung else blamed,
            blamed_before=tuple(s.state.blamed),
            slurm_away=not exits and s.allocation.node_watch.away(),
            last_step=self.metrics.last_step,
            max_step=s.state.max_step,
            same_place=s.state.same_place,
            no_progress=s.state.no_progress,
            attempts=s.state.attempts,
            loss=self.loss,
            guards_loss=s.recipe.loss_guard.action == "rollback",
            rollbacks=s.state.rollbacks,
            max_rollbacks=s.recipe.loss_guard.max_rollbacks,
        )


def find_hung(
    beats: dict[int, tuple[str, Optional[int], float, str]],
    exits: dict[int, int],
    hang: Hang,
    p99_s: Optional[float],
    slack_s: float = 0.0,
) -> Optional[tuple[int, str, float]]:
    """(rank, node, silence in s) of the rank that hangs, or None.

    When one rank stops, the others wait for it in a collective and fall silent too: the culprit is
    the one that is silent longest, and of those the one at the earliest training step.

    Args:
        beats: {rank: (phase, step, age in s, node)}.
        exits: ranks that have ended need not show life.
        hang: longest silence by phase; before five training steps are timed, that of the setup.
        p99_s: 99th percentile of the training-step time.
        slack_s: taken off the limit where the rank was over it at the last look: a report that was
            longer on its way makes it look younger.
    """
    step_limit = hang.setup_s if p99_s is None else max(hang.floor_s, hang.factor * p99_s)
    limits = {"setup": hang.setup_s, "save": hang.save_s, "eval": hang.eval_s}
    living = {rank: beat for rank, beat in beats.items() if rank not in exits}
    # The most patient phase holds for all: while one rank saves, its peers wait for it.
    limit = max((limits.get(phase, step_limit) for phase, *_ in living.values()), default=0.0)
    late = [
        (age, -(step or 0), rank, node)
        for rank, (_, step, age, node) in living.items()
        if age > limit - slack_s
    ]
    if not late:
        return None
    age, _, rank, node = max(late)
    return rank, node, age
