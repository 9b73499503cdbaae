"""How a job becomes the owner of its run: whose job, which folders, the lease, guards, the journal.

The counterpart of ending.py: before the first attempt everything here has happened, or one line
says why the job does not start.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Optional

from muster import slurm
from muster.errors import ConfigError, UnavailableError, UsageError
from muster.recipe import Recipe
from muster.site import Site, load_site
from resume import attempt, guard, journal, lease, minder, ranks, rescue, rundir
from resume.container import Container
from resume.durable import read_json
from resume.ending import Ended
from resume.fleet import Fleet, own_argv
from resume.journal import Journal
from resume.metrics import MetricsTail
from resume.step import Step
from resume.supervisor import Supervisor, ranks_on_a_node

_INTERACTIVE_STEP = "4294967290"  # where salloc runs its shell


@dataclass(frozen=True)
class Places:
    """Where a run comes from and where it is; `step` stands in place of a snapshot."""

    recipe_dir: Path
    run_dir: Path
    step: Optional[Step] = None
    from_step: Optional[int] = None  # training step of the checkpoint that a person has chosen
    before: Optional[str] = None  # the job that this one follows
    container: Optional[Container] = None


def own_job(instead: str) -> slurm.Job:
    """The job that this process runs in.

    Raises:
        UsageError: there is none, or this is a step of it and not its script.
    """
    job_id, step_id = (os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
    if not job_id:
        raise UsageError("SLURM_JOB_ID", "not set, this is no job", instead)
    if step_id not in ("", _INTERACTIVE_STEP):
        what = "set, this is a step: it would end with the node that it runs on"
        raise UsageError("SLURM_STEP_ID", what, "start it in the batch script, without srun")
    return _ask_until_answered(job_id)


def restart_count() -> int:
    """How often Slurm has started this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def supervise(job: slurm.Job, recipe: Recipe, places: Places) -> int:
    """Become the owner of RUN_DIR, and keep the run going."""
    site, restart = load_site(), restart_count()
    nonce = rundir.prepare(places.run_dir)
    token = lease.take(places.run_dir, job.job_id, restart, site.lease_s)
    if places.before is not None:  # only now: of two successors one has been refused
        rundir.hand_over(places.run_dir, places.before, job.job_id)
    if places.step is None:
        rundir.snapshot(places.recipe_dir, places.run_dir, job.job_id)
    options = [
        *("--run-dir", str(places.run_dir), "--job", job.job_id, "--restart", str(restart)),
        *("--token", str(token), "--lease-s", str(site.lease_s), "--nonce", nonce),
    ]
    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    kill_wait_s = slurm.kill_wait_s()
    as_guard = guard.GuardArguments(
        *(places.run_dir, job.job_id, restart, token, site.lease_s, nonce, ()), kill_wait_s
    )
    options += ["--kill-wait-s", str(kill_wait_s)]
    minder.keep_watch(as_guard, host)  # from here on in a process of its own
    log = places.run_dir / "logs" / "guards.log"
    supervisor = Supervisor(
        site=site,
        recipe=recipe,
        job=job,
        recipe_dir=places.recipe_dir,
        run_dir=places.run_dir,
        token=token,
        journal=Journal(places.run_dir / "journal.jsonl", token),
        host=host,
        fleet=Fleet([*own_argv(), "guard", *options], log),
        **_shape(recipe, site),
        step=places.step,
        from_step=places.from_step,
        container=places.container,
    )
    _arm_signals(supervisor)
    try:
        _introduce(supervisor, restart)
    except Ended as end:  # the journal could not be written
        return end.code
    return supervisor.run()


def _ask_until_answered(job_id: str) -> slurm.Job:
    """The job's facts; the controller may be away for a minute when we start."""
    if shutil.which("scontrol") is None:
        print(
            "muster run: scontrol is not on PATH: training goes on without requeues. "
            "Fix: put Slurm's client programs on PATH of the batch script",
            file=sys.stderr,
            flush=True,
        )
        return slurm.job_from_environment(os.environ)
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        try:
            return slurm.show_job(job_id)
        except UnavailableError as error:  # noqa: PERF203
            print(f"muster run: {error}", file=sys.stderr, flush=True)
            time.sleep(pause_s)
    return slurm.show_job(job_id)


def recipe_dir_of(named: Optional[Path], job: slurm.Job) -> Path:
    """The folder that a person has named, or that of the job's script.

    Raises:
        ConfigError: Slurm does not know where the script came from.
    """
    if named is not None:
        return named.absolute()
    script = slurm.script_of(job)
    if script is None:
        raise ConfigError(
            f"job {job.job_id}",
            f"its script is not to be found ({job.command})",
            "pass --recipe FOLDER to muster run",
        )
    return script.parent


def with_arguments(recipe: Recipe, rest: Sequence[str]) -> Recipe:
    """The recipe whose training command gets the words after `--`."""
    commands = [attempt.with_arguments(command, rest) for command in recipe.commands]
    return Recipe(**{**vars(recipe), "commands": commands})


def _shape(recipe: Recipe, site: Site) -> dict[str, Any]:
    gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
    per_node = ranks_on_a_node(recipe, site, int(gpus) if gpus.isdigit() else None)
    cpus = os.environ.get("SLURM_CPUS_ON_NODE", "")
    cpus_per_rank = max(1, int(cpus) // per_node) if cpus.isdigit() else None
    return {"ranks_per_node": per_node, "cpus_per_rank": cpus_per_rank}


def _arm_signals(supervisor: Supervisor) -> None:
    """SIGUSR1 (#SBATCH --signal=B:USR1@120): time is nearly up. SIGTERM: Slurm ends the job."""

    def on_time(_number: int, _frame: Optional[FrameType]) -> None:
        supervisor.time_is_up = True

    def on_term(_number: int, _frame: Optional[FrameType]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm tells all; the minder passes it on
        supervisor.ending.end_now()

    signal.signal(signal.SIGUSR1, on_time)
    signal.signal(signal.SIGTERM, on_term)


def _introduce(supervisor: Supervisor, restart: int) -> None:
    """Fold the journal, and write down how the supervisor before this one ended."""
    s = supervisor
    ranks.kill(s.run_dir)  # of an older token on this node: whoever is left is not ours
    entries = journal.read(s.journal.path)
    s.state = journal.fold(entries)
    recipe = s.recipe
    if not entries:
        s.note(
            "run_started",
            recipe=recipe.name,
            recipe_dir=str(s.recipe_dir),
            nodes_wanted=recipe.nodes,
            spares=len(s.job.nodes) - recipe.nodes,
            job=s.job.job_id,
        )
    takeover = bool(entries) and entries[-1]["event"] not in journal.ENDS
    reason = "takeover" if takeover else ("requeued" if restart or entries else "first")
    facts = {"job": s.job.job_id, "restart": restart, "host": s.host, "boot": guard.boot_id()}
    s.note("supervisor_started", **facts, reason=reason)
    if takeover:
        _record_takeover(s, entries, restart)
    s.say(f"run {s.run_dir}, nodes {','.join(s.job.nodes)}, {reason}")


def _record_takeover(s: Supervisor, entries: list[dict[str, Any]], restart: int) -> None:
    """The incident that ended the last supervisor, as its guards saw it."""
    told = read_json(rescue.rescue_file(s.run_dir, s.job.job_id, restart - 1)) or {}
    started = [e for e in entries if e["event"] == "supervisor_started"]
    host = told.get("batch_host") or (started[-1]["host"] if started else None)
    cause = told.get("cause", "supervisor_lost")
    boot = started[-1].get("boot") if started else None
    if cause == "batch_host_lost" and boot:
        s.note("suspect", node=host, boot=boot, why="lost as the batch host")
    number = s.state.unfinished_attempt
    tail = MetricsTail(s.run_dir / "metrics.jsonl", number or 0)
    tail.poll()
    facts = {"attempt": number, "cause": cause, "node": host}
    s.note(
        "incident",
        **facts,
        detail=f"{host} was lost" if cause == "batch_host_lost" else f"{host} lost its supervisor",
        last_step=tail.last_step,
        last_step_time=tail.last_time,
        detected_at=told.get("noticed", time.time()),
    )
    if number is not None:
        s.note(
            "attempt_ended",
            **facts,
            action="requeue",
            why="taken over",
            last_step=tail.last_step,
            exit_codes={},
        )
