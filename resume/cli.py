"""`muster run`, `guard`, `verify`, `audit` and `report`: the command line of resume."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from pathlib import Path
from typing import Any

from muster.image.preflight import Node
from muster.recipe import Checkpoints, load_recipe
from resume import (
    checkpoint,
    guard,
    local_copies,
    opening,
    rundir,
    successor,
    tiers,
)
from resume.container import asked, require_mountable, wanted
from resume.container_preflight import require_startable
from resume.fleet import own_argv
from resume.step import parse
from resume.steprun import as_recipe, claim
from resume.supervisor import wanted_nodes


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
    job = opening.own_job("sbatch the recipe's run.sbatch instead")
    recipe_dir = opening.recipe_dir_of(arguments.recipe, job)
    before = successor.predecessor(os.environ)
    default = rundir.default_run_dir(recipe_dir, job.job_id, opening.restart_count())
    run_dir = (before[1] if before else arguments.run_dir or default).absolute()
    taken = rundir.snapshot_of(run_dir, job.job_id)  # later edits must not leak in
    if before is not None:
        taken = taken or rundir.snapshot_of(run_dir, before[0])
    source = taken or recipe_dir
    recipe = opening.with_arguments(load_recipe(source, arguments.assignments), arguments.rest)
    wanted_nodes(recipe, len(job.nodes))
    chosen = None if before else arguments.from_step  # the job before this one has gone back
    words = (arguments.image, arguments.mount, arguments.env)
    container = wanted(*words, os.environ, Path.cwd(), docker=arguments.docker)
    if container is not None:
        require_mountable(run_dir, recipe_dir)
        require_startable(container, Node.here())
    previous = before[0] if before else None
    places = opening.Places(
        recipe_dir, run_dir, from_step=chosen, before=previous, container=container
    )
    return opening.supervise(job, recipe, places)


def _srun(arguments: argparse.Namespace) -> int:
    """The step of one srun line, as a recipe of one command that is done when all ranks exit 0."""
    job = opening.own_job("start it in a job made by sbatch or salloc")
    step = parse(arguments.rest, os.environ, len(job.nodes), Path.cwd())
    with claim(step, job.job_id, opening.restart_count(), os.environ) as run_dir:
        if asked(step.options, os.environ):
            require_mountable(run_dir)
        return opening.supervise(job, as_recipe(step), opening.Places(step.folder, run_dir, step))


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
