"""`muster watch`: on the controller, bring drained nodes back without a person.

A thin loop around `watch_rules.next_action`: read all nodes, decide for each, read the node again,
decide again, write the record down, act. Commands of the site run beside the loop, so that one slow
replacement does not hide the next lost node.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from healthcheck import orders, watch_state
from healthcheck.action_log import ActionLog, default_path
from healthcheck.drain import update
from healthcheck.job_watch import JobWatch
from healthcheck.watch_budget import Budget, budget_left, drains_left, failing_alike
from healthcheck.watch_records import (
    LOST_REASON,
    Ended,
    Record,
    after_command,
    after_verify,
    judge_verify,
)
from healthcheck.watch_rules import Action, next_action
from muster import slurm
from muster.errors import MusterError, StorageError, UsageError
from muster.process import run
from muster.site import Site, load_site
from muster.slurm import Node

VERIFY_TIMEOUT_S = 300.0
JOBS_EVERY = 6  # rounds between two looks at the queue, which may be long
MOST_COMMANDS = 16


@dataclass(frozen=True)
class _Running:
    kind: str
    began: float
    future: Future[Ended]


class Watch:
    """The loop's state: records (also on disk) and commands that run (only here)."""

    def __init__(
        self, site: Site, state: Path, log: ActionLog, *, dry_run: bool, interval_s: float = 5.0
    ) -> None:
        self._site, self._state, self._log, self._dry_run = site, state, log, dry_run
        self._records = watch_state.load(state)
        self._running: dict[str, _Running] = {}
        self._pool = ThreadPoolExecutor(MOST_COMMANDS)
        self._slurm_silent = False
        self._hinted: dict[str, str] = {}  # node -> reason that is nearly an order
        self._users = frozenset({"root", "slurm"}) | slurm_user()
        every_s = JOBS_EVERY * interval_s
        self._jobs = JobWatch(site, state, log, dry_run, every_s, self._users)

    def round(self) -> bool:
        """Look at every node once, and now and then at jobs; False: Slurm does not answer."""
        self._collect()
        try:
            nodes = slurm.show_nodes()
        except MusterError as error:
            if not self._slurm_silent:
                self._say("slurm_silent", None, f"nothing is done: {error}")
            self._slurm_silent = True
            return False
        self._slurm_silent = False
        known = {*nodes, *self._running}  # a replacement may take its node out of Slurm meanwhile
        for gone in [name for name in self._records if name not in known]:
            self._keep(gone, None)
        for name in nodes:
            if name not in self._running:
                self._look(name, nodes)
            self._hint(nodes[name])
        self._jobs.round(nodes)
        return True

    def finish(self) -> None:
        """Wait for the commands that run, and write down how they ended."""
        for running in self._running.values():
            running.future.exception()
        self._collect()
        self._pool.shutdown()

    def _look(self, name: str, nodes: dict[str, Node]) -> None:
        action = self._decide(nodes[name], nodes)
        if action.kind in ("none", "wait"):
            self._wait(name, action)
        elif action.kind in ("forget", "returned", "give_up"):
            self._say(action.kind, name, action.why)
            self._keep(name, action.record)
        elif self._dry_run:
            self._wait(name, replace(action, why=f"dry run: would {action.kind}: {action.why}"))
        else:
            self._act_if_still(name, action, nodes)

    def _hint(self, node: Node) -> None:
        """Say once what is wrong with an order that was meant."""
        wrong = orders.near_miss(node)
        if wrong is None:
            self._hinted.pop(node.name, None)
        elif self._hinted.get(node.name) != wrong:
            self._hinted[node.name] = wrong
            self._say("near_miss", node.name, wrong)

    def _decide(self, node: Node, nodes: dict[str, Node]) -> Action:
        site, now = self._site, time.time()
        budget = Budget(
            left=budget_left(node, nodes, self._records, site.max_unfit_fraction),
            drain_left=drains_left(node, nodes, site.max_unfit_fraction),
            alike=failing_alike(node.name, self._records, site.shared_cause_s, now),
            slurm_users=self._users,
        )
        return next_action(node, self._records.get(node.name), site, now, budget)

    def _act_if_still(self, name: str, action: Action, nodes: dict[str, Node]) -> None:
        """Read the node again; act only if the same is still right."""
        try:
            fresh = slurm.show_nodes([name])[name]
            again = self._decide(fresh, {**nodes, name: fresh})
            if again.kind != action.kind:
                why = f"no {action.kind}: the node changed meanwhile: {again.why}"
                self._say("refused", name, why)
                return
            self._act(name, again)
        except MusterError as error:
            if isinstance(error, StorageError):
                raise  # the record is not on disk: stop rather than forget what was done
            # The record of before: the action did not happen.
            failed = f"{action.kind} failed: {error}"
            self._wait(name, Action("wait", failed, self._records.get(name)))

    def _act(self, name: str, action: Action) -> None:
        if action.kind == "drain":
            update(name, "drain", LOST_REASON)
            self._say("drained", name, action.why, reason=LOST_REASON)
            self._keep(name, action.record)
        elif action.kind == "resume":
            update(name, "resume")
            self._say("resumed", name, action.why)
            self._keep(name, action.record)
        else:
            self._keep(name, action.record)  # before the command: it must never be given twice
            self._say(f"{action.kind}_started", name, action.why)
            reason = action.record.reason if action.record else ""
            future = self._pool.submit(self._command, action.kind, name, reason)
            self._running[name] = _Running(action.kind, time.monotonic(), future)

    def _command(self, kind: str, name: str, reason: str) -> Ended:
        """Run a command of the site to its end."""
        site = self._site
        words, limit_s = {
            "replace": (site.replace_command, site.replace_timeout_s),
            "reboot": (site.reboot_command, site.replace_timeout_s),
            "verify": (site.verify_command, VERIFY_TIMEOUT_S),
        }[kind]
        done = run([word.replace("{node}", name) for word in words], timeout_s=limit_s)
        if done.ok:
            return judge_verify(reason, done.out) if kind == "verify" else Ended(None)
        said = done.out.strip().splitlines()[-1:] if not done.err.strip() else []
        return Ended(f"exit status {done.rc}: {said[0] if said else done.reason}"[:300])

    def _collect(self) -> None:
        """Take in the commands that have ended."""
        for name, running in list(self._running.items()):
            if not running.future.done():
                continue
            del self._running[name]
            error = running.future.exception()
            ended = Ended(str(error)) if error else running.future.result()
            known, now = self._records[name], time.time()
            if running.kind == "verify":
                record = after_verify(known, ended, self._site.verify_pause_s, now)
            else:
                record = after_command(known, ended, now)
            word = "ended" if ended.problem is None else "failed"
            took = round(time.monotonic() - running.began, 3)
            more = {"took_s": took, "failures": record.failures}
            self._say(f"{running.kind}_{word}", name, ended.problem or "exit status 0", **more)
            self._keep(name, record)

    def _wait(self, name: str, action: Action) -> None:
        """Keep the record; say why nothing happens, once."""
        record = action.record
        if record is not None and record.said != action.why:
            self._say("waits", name, action.why)
            record = replace(record, said=action.why)
        self._keep(name, record)

    def _keep(self, name: str, record: Optional[Record]) -> None:
        if self._records.get(name) == record:
            return
        if record is None:
            del self._records[name]
        else:
            self._records[name] = record
        if not self._dry_run:
            watch_state.save(self._state, self._records)

    def _say(self, event: str, node: Optional[str], why: str, **more: object) -> None:
        about = f"node {node}: " if node else ""
        print(f"muster watch: {about}{event.replace('_', ' ')}: {why}", flush=True)
        self._log.write(event, node, why, **more)


def slurm_user() -> frozenset[str]:
    """The user that writes Slurm's own reasons; empty when Slurm does not say."""
    done = run(["scontrol", "show", "config"], timeout_s=slurm.TIMEOUT_S)
    lines = [line for line in done.out.splitlines() if line.startswith("SlurmUser ")]
    return frozenset(line.partition("=")[2].strip().partition("(")[0] for line in lines)


def main(arguments: argparse.Namespace) -> int:
    """Watch until SIGTERM or SIGINT; with --once a single round.

    Returns:
        0, or with --once 69 when Slurm does not answer.

    Raises:
        MusterError: wrong site file, another watch runs, state file damaged.
    """
    if arguments.interval <= 0:
        raise UsageError("--interval", f"{arguments.interval:g} is not above 0", "--interval 5")
    os.environ.pop("SLURM_TIME_FORMAT", None)  # boot times are read from scontrol
    site = load_site()
    state = arguments.state or watch_state.default_path()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with watch_state.locked(state):
        log = ActionLog(arguments.log or default_path())
        interval_s = arguments.interval
        watch = Watch(site, state, log, dry_run=arguments.dry_run, interval_s=interval_s)
        answered = watch.round()
        while not arguments.once and not stop.wait(arguments.interval):
            watch.round()
        watch.finish()
    return 69 if arguments.once and not answered else 0
