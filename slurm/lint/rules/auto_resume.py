"""What `srun --auto-resume=1` needs, on HyperPod above all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm.lint.finding import ERROR, WARNING, Spot, rule
from slurm.lint.rules.survival import limit_s
from slurm.lint.script import Script

_FLOOR_S = 120 * 60
_ENDPOINT = re.compile(r"rdzv.endpoint[= ]\"?\$\{?(\w+)")
_VARIABLE = re.compile(r"\$\{?(\w+)")
_FROM_NODES = re.compile(r"scontrol show hostname|\bhostname\b|SLURM_(JOB|STEP)_NODELIST")


@rule(
    WARNING,
    why="""HyperPod's auto-resume does not work with it, nor with --mem on the step. (muster's
    plugin hands both on.)""",
    fix="leave it out on HyperPod: with --exclusive the ranks have all CPUs of the node anyway",
)
def auto_resume_cpus(script: Script) -> Iterator[Spot]:
    """No --cpus-per-task and no --mem with --auto-resume=1."""
    for one in script.auto_resumes:
        for name in ("cpus-per-task", "mem"):
            if name in one.options:
                yield Spot(one.line, f"--{name} beside --auto-resume=1")
    if script.auto_resumes and "cpus-per-task" in script.options:
        yield Spot(script.options["cpus-per-task"].line, "--cpus-per-task beside --auto-resume=1")


@rule(
    WARNING,
    why="A node that is replaced must not take another job with it; HyperPod demands it.",
    fix="add '#SBATCH --exclusive'",
)
def auto_resume_exclusive(script: Script) -> Iterator[Spot]:
    """--auto-resume=1 has its nodes for itself."""
    if script.auto_resumes and "exclusive" not in script.options:
        yield Spot(script.auto_resumes[0].line, "--auto-resume=1 without --exclusive")


@rule(
    WARNING,
    why="""Only the step with --auto-resume=1 is started again. What an srun before it has prepared
    (a cache, a mount, a container) is not there on the node that replaces another.""",
    fix="do it in the same srun: srun --auto-resume=1 bash -c 'prepare && exec train'",
)
def auto_resume_setup(script: Script) -> Iterator[Spot]:
    """What nodes need is prepared in the srun that trains."""
    for resumed in script.auto_resumes[:1]:
        for one in script.sruns:
            if one.line < resumed.line and not one.auto_resume and one.program.command.depth == 0:
                yield Spot(one.line, "a replaced node does not get what this srun prepares")


@rule(
    ERROR,
    why="""The script runs once, the step again: the address is that of a node which may be gone by
    then, and every rank waits for it, for ever.""",
    fix="work it out within the step: srun --auto-resume=1 bash -c 'MASTER_ADDR=...; exec ...'",
)
def auto_resume_address(script: Script) -> Iterator[Spot]:
    """Under --auto-resume=1 the address of the rendezvous is found in every attempt."""
    if not script.auto_resumes:
        return
    passed = " ".join(word for one in script.auto_resumes for word in one.rest)
    used = {"MASTER_ADDR", *_ENDPOINT.findall(passed)}
    nodes = {name for name, value in script.variables.items() if _FROM_NODES.search(value)}
    for name, value, line in script.assigned:
        if name in used and (_FROM_NODES.search(value) or nodes & set(_VARIABLE.findall(value))):
            yield Spot(line, f"{name} is worked out once, and stays when its node is replaced")


@rule(
    WARNING,
    why="A replacement on HyperPod takes 20 to 30 minutes, and the clock of the job runs on.",
    fix="--time=2:00:00 or more",
)
def auto_resume_time(script: Script) -> Iterator[Spot]:
    """A job with --auto-resume=1 has time for a replacement: at least two hours."""
    limit = limit_s(script)
    if script.auto_resumes and limit is not None and limit < _FLOOR_S:
        line = script.options["time"].line
        yield Spot(line, f"{limit // 60} minutes leave no time for a replacement")
