"""`muster run`, `guard`, `verify`, `audit` and `report`: the command line of resume."""

from __future__ import annotations

import argparse
import contextlib
import json
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
from muster.image.preflight import Node
from muster.recipe import Checkpoints, Recipe, load_recipe
from muster.site import Site, load_site
from resume import (
    attempt,
    checkpoint,
    guard,
    journal,
    lease,
    local_copies,
    minder,
    ranks,
    rescue,
    rundir,
    successor,
    tiers,
)
from resume.container import Container, asked, require_mountable, wanted
from resume.container_preflight import require_startable
from resume.durable import read_json
from resume.ending import Ended
from resume.fleet import Fleet, own_argv
from resume.journal import Journal
from resume.metrics import MetricsTail
from resume.step import Step, parse
from resume.steprun import as_recipe, claim
from resume.supervisor import Supervisor, ranks_on_a_node, wanted_nodes

_INTERACTIVE_STEP = "4294967290"  # where salloc runs its shell


@dataclass(frozen=True)
class _Places:
    """Where a run comes from and where it is; `step` stands in place of a snapshot."""

    recipe_dir: Path
    run_dir: Path
    step: Optional[Step] = None
    from_step: Optional[int] = None  # training step of the checkpoint that a person has chosen
    before: Optional[str] = None  # the job that this one follows
    container: Optional[Container] = None


def add_parser(verbs: Any) -> None:
    """Add the verbs of resume to the command line."""
    run = verbs.add_parser("run", help="keep the job's run going until it is done (in sbatch)")
    run.add_argument(
        "--recipe", type=Path, help="the recipe's folder (default: that of the script)"
    )
    run.add_argument("--run-dir", type=Path, help="continue or place the run here (shared)")
    run.add_argument(
        "--from-step",
        type=int,
        metavar="N",
        help="go on from the checkpoint of training step N, once; later ones are set aside",
    )
    run.add_argument(
        "--image", help="run the ranks in this container: a .sqsh file, REGISTRY#IMAGE"
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    run.add_argument(
        "--mount", metavar="SOURCE[:TARGET[:FLAGS]]", help="into the container", **several
    )
    run.add_argument("--env", metavar="NAME", help="wins over the image's variable", **several)
    run.add_argument("--docker", action="store_true", help="Docker starts it, not Pyxis")
    run.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="over recipe.yaml")
    run.epilog = "Arguments after -- go to the training command."
    run.set_defaults(func=_run, verb="run", rest=[])

    node = verbs.add_parser("guard", help=argparse.SUPPRESS)
    node.add_argument("--run-dir", type=Path, required=True)
    node.add_argument("--job", required=True)
    node.add_argument("--restart", type=int, required=True)
    node.add_argument("--token", type=int, required=True)
    node.add_argument("--lease-s", type=float, required=True)
    node.add_argument("--nonce", required=True)
    node.add_argument("--kill-wait-s", type=float, default=30.0)
    node.set_defaults(func=_guard, verb="guard")

    keeper = verbs.add_parser("caretake", help=argparse.SUPPRESS)
    keeper.add_argument("run_dir", type=Path)
    keeper.add_argument("--token", type=int, required=True)
    keeper.add_argument("--keep", type=int, required=True)
    keeper.add_argument("--keep-every", type=int, required=True)
    keeper.add_argument("--archive", help="URL")
    keeper.add_argument("--archive-keep", type=int, default=1)
    keeper.add_argument("--endpoint")
    keeper.set_defaults(func=_caretake, verb="caretake")

    check = verbs.add_parser("verify", help="verify checkpoints: sizes and checksums")
    check.add_argument("checkpoint", type=Path, nargs="+")
    check.set_defaults(func=_verify, verb="verify")

    step = verbs.add_parser(
        "srun",
        help="srun that restarts its step on fit nodes (srun --auto-resume=1)",
        usage="muster srun [OPTIONS OF SRUN] -- PROGRAM [ARGUMENTS]",
    )
    step.set_defaults(func=_srun, verb="srun", rest=[])
    tiers.add_parser(verbs)
    local_copies.add_parser(verbs)

    proof = verbs.add_parser("audit", help="was every sample trained on exactly once?")
    proof.add_argument("run_dir", type=Path)
    proof.add_argument("--json", action="store_true", help="for programs")
    proof.set_defaults(func=_audit, verb="audit")

    report = verbs.add_parser("report", help="HTML and PNG: what happened to a run")
    report.add_argument("run_dir", type=Path)
    report.add_argument("--out", type=Path, help="folder for report.html and report.png")
    report.add_argument("--baseline", type=Path, help="RUN_DIR of the uninterrupted run")
    report.set_defaults(func=_report, verb="report")


def _run(arguments: argparse.Namespace) -> int:
    job = _own_job("sbatch the recipe's run.sbatch instead")
    recipe_dir = _recipe_dir(arguments.recipe, job)
    before = successor.predecessor(os.environ)
    default = rundir.default_run_dir(recipe_dir, job.job_id, _restart_count())
    run_dir = (before[1] if before else arguments.run_dir or default).absolute()
    taken = rundir.snapshot_of(run_dir, job.job_id)  # later edits must not leak in
    if before is not None:
        taken = taken or rundir.snapshot_of(run_dir, before[0])
    source = taken or recipe_dir
    recipe = _with_arguments(load_recipe(source, arguments.assignments), arguments.rest)
    wanted_nodes(recipe, len(job.nodes))
    chosen = None if before else arguments.from_step  # the job before this one has gone back
    words = (arguments.image, arguments.mount, arguments.env)
    container = wanted(*words, os.environ, Path.cwd(), docker=arguments.docker)
    if container is not None:
        require_mountable(run_dir, recipe_dir)
        require_startable(container, Node.here())
    previous = before[0] if before else None
    places = _Places(recipe_dir, run_dir, from_step=chosen, before=previous, container=container)
    return _supervise(job, recipe, places)


def _srun(arguments: argparse.Namespace) -> int:
    """The step of one srun line, as a recipe of one command that is done when all ranks exit 0."""
    job = _own_job("start it in a job made by sbatch or salloc")
    step = parse(arguments.rest, os.environ, len(job.nodes), Path.cwd())
    with claim(step, job.job_id, _restart_count(), os.environ) as run_dir:
        if asked(step.options, os.environ):
            require_mountable(run_dir)
        return _supervise(job, as_recipe(step), _Places(step.folder, run_dir, step))


def _own_job(instead: str) -> slurm.Job:
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


def _restart_count() -> int:
    """How often Slurm has started this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _supervise(job: slurm.Job, recipe: Recipe, places: _Places) -> int:
    """Become the owner of RUN_DIR, and keep the run going."""
    site, restart = load_site(), _restart_count()
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


def _recipe_dir(named: Optional[Path], job: slurm.Job) -> Path:
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


def _with_arguments(recipe: Recipe, rest: Sequence[str]) -> Recipe:
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


def _guard(arguments: argparse.Namespace) -> int:
    check = [*own_argv(), "check", "--json"]
    return guard.serve(
        guard.GuardArguments(
            run_dir=arguments.run_dir,
            job=arguments.job,
            restart=arguments.restart,
            token=arguments.token,
            lease_s=arguments.lease_s,
            nonce=arguments.nonce,
            check_argv=check,
            kill_wait_s=arguments.kill_wait_s,
            place=int(os.environ.get("SLURM_NODEID") or 0),
        )
    )


def _caretake(arguments: argparse.Namespace) -> int:
    from resume import caretaker  # noqa: PLC0415  (start time counts for the other verbs)

    rules = Checkpoints(
        keep=arguments.keep,
        keep_every=arguments.keep_every,
        archive=bool(arguments.archive),
        archive_keep=arguments.archive_keep,
    )
    place = (str(arguments.archive), arguments.endpoint)
    return caretaker.main(arguments.run_dir, arguments.token, rules, place)


def _verify(arguments: argparse.Namespace) -> int:
    bad = 0
    for path in arguments.checkpoint:
        problems = checkpoint.verify(path)
        bad += bool(problems)
        print(f"{path}: {'; '.join(problems) if problems else 'good'}")
    return 1 if bad else 0


def _audit(arguments: argparse.Namespace) -> int:
    from resume import audit  # noqa: PLC0415  (start time counts for the other verbs)

    found = audit.read(arguments.run_dir)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(found.as_json()) if arguments.json else found.text())
    return 0 if found.proven else 1


def _report(arguments: argparse.Namespace) -> int:
    from resume import report  # noqa: PLC0415  (needs matplotlib, which hosts lack)

    summary = report.write_report(arguments.run_dir, arguments.out, baseline=arguments.baseline)
    with contextlib.suppress(BrokenPipeError):
        print(summary.text if hasattr(summary, "text") else summary)
    return 0
