"""The watch's look at jobs: those of muster's that nobody alive can help, see `job_rules`.

The whole queue is read rarely and in one call; only a job that looks like trouble is asked about.
Each is read again before anything is done to it, and the record is on disk before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from healthcheck import job_queue, watch_state
from healthcheck.action_log import ActionLog
from healthcheck.gres_watch import GresWatch
from healthcheck.job_queue import Entry
from healthcheck.job_rules import HELD_BY_SLURM, JobAction, JobRecord, View, next_job_action
from muster import slurm
from muster.errors import MusterError, StorageError
from muster.site import Site
from muster.slurm import Job, Node


@dataclass
class JobWatch:
    """Records of jobs, also on disk."""

    site: Site
    state: Path
    log: ActionLog
    dry_run: bool
    every_s: float  # between two looks at the queue
    slurm_users: frozenset[str]
    _records: dict[str, JobRecord] = field(init=False)
    _ours: dict[str, bool] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)  # last reason for doing nothing
    _looked_at: Optional[float] = None
    _silent: bool = False
    _gres: GresWatch = field(init=False)

    def __post_init__(self) -> None:
        self._records = watch_state.load_jobs(self.state)
        per_day = self.site.gres_recounts_per_day
        self._gres = GresWatch(self.state, self.log, self.dry_run, per_day)

    def round(self, nodes: Mapping[str, Node]) -> None:
        """Look at the queue if it is time."""
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < self.every_s:
            return
        self._looked_at = now
        try:
            queue = job_queue.entries()
        except MusterError as error:
            if not self._silent:
                self._say("slurm_silent", None, f"jobs are not looked at: {error}")
            self._silent = True
            return
        self._silent = False
        present = {entry.job_id for entry in queue}
        for gone in {*self._ours, *self._records} - present:
            self._ours.pop(gone, None)
            self._said.pop(gone, None)
            self._keep(gone, None)
        for entry in queue:
            if entry.job_id in self._records or looks_like_trouble(entry, nodes):
                self._look(entry.job_id, nodes)
        self._gres.round(queue)

    def _look(self, job_id: str, nodes: Mapping[str, Node]) -> None:
        try:
            if job_id not in self._ours:
                self._ours[job_id] = job_queue.is_musters(job_id)
            if not self._ours[job_id]:
                return
            job = slurm.show_job(job_id)
            action = self._decide(job, nodes)
            if action.kind == "none":
                self._said.pop(job_id, None)
                self._keep(job_id, action.record)
            elif action.kind == "wait":
                self._keep(job_id, action.record)
                self._say_waits(job_id, action.why)
            elif self.dry_run:
                self._say_waits(job_id, f"dry run: would {action.kind} it: {action.why}")
            else:
                self._act_if_still(job_id, action)
        except MusterError as error:
            if isinstance(error, StorageError):
                raise  # the record is not on disk: stop rather than forget what was done
            self._say_waits(job_id, str(error))

    def _decide(self, job: Job, nodes: Mapping[str, Node]) -> JobAction:
        host = nodes.get(job.batch_host or "")
        view = View(
            nodes=nodes,
            host_answers=host is not None and (not host.lost or job_queue.reachable(host)),
            slurm_users=self.slurm_users,
            stranded_after_s=self.site.stranded_after_s,
            cures_per_day=self.site.job_cures_per_day,
            shared_cause_s=self.site.shared_cause_s,
            now=time.time(),
        )
        return next_job_action(job, self._records.get(job.job_id), view)

    def _act_if_still(self, job_id: str, action: JobAction) -> None:
        """Read the job and all nodes again; act only if the same is still right."""
        job = slurm.show_job(job_id)
        again = self._decide(job, slurm.show_nodes())
        if again.kind != action.kind:
            self._say_waits(job_id, f"no {action.kind}, it changed meanwhile: {again.why}")
            return
        before = self._records.get(job_id)
        self._keep(job_id, again.record)  # before the act: it must never be done twice
        try:
            if again.kind == "release":
                job_queue.release(job, again.excluded)
            else:
                slurm.requeue(job.address)
        except MusterError as error:
            self._keep(job_id, before)
            self._say_waits(job_id, f"{again.kind} failed: {error}")
        else:
            self._say(f"job_{again.kind}d", job_id, again.why)

    def _say_waits(self, job_id: str, why: str) -> None:
        """Why nothing happens, once."""
        if self._said.get(job_id) != why:
            self._said[job_id] = why
            self._say("waits", job_id, why)

    def _keep(self, job_id: str, record: Optional[JobRecord]) -> None:
        if self._records.get(job_id) == record:
            return
        if record is None:
            del self._records[job_id]
        else:
            self._records[job_id] = record
        if not self.dry_run:
            watch_state.save_jobs(self.state, self._records)

    def _say(self, event: str, job_id: Optional[str], why: str) -> None:
        about = f"job {job_id}: " if job_id else ""
        print(f"muster watch: {about}{event.replace('_', ' ')}: {why}", flush=True)
        self.log.write(event, None, why, job=job_id)


def looks_like_trouble(entry: Entry, nodes: Mapping[str, Node]) -> bool:
    """Whether a job is worth asking Slurm about: held by Slurm, or its batch host is not well."""
    if entry.state == "PENDING":
        return entry.reason.replace("_", " ") in HELD_BY_SLURM
    host = nodes.get(entry.batch_host)
    if host is None or host.lost:
        return host is not None
    booted, began = slurm.unix_time(host.boot_time), slurm.unix_time(entry.start_time)
    return booted is not None and began is not None and booted > began
