"""One launch of a command: the srun line, the environment of the contract, and its end.

The ranks start under a small shell that maps Slurm's numbers to torch's names and leaves each
rank's exit code for the guard: srun alone reports one code for all ranks, and after it has killed
the survivors that code may be anybody's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster import slurm
from resume import container as containers
from resume import docker
from resume.container import Container
from resume.fleet import step_environment
from resume.step import Step

_RANK_SH = """\
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
own=$(cat "$MUSTER_BEAT_DIR/resume" 2>/dev/null) && [ -d "$own" ] && export MUSTER_RESUME="$own"
trap : TERM
log=${MUSTER_LOG_DIR:+$MUSTER_LOG_DIR/rank_$RANK.log}
if [ -z "$log" ] || true >>"$log"; then
  [ -z "$log" ] || exec >>"$log" 2>&1
  bash -c "$MUSTER_COMMAND"
  code=$?
else
  code=74
fi
cd "$MUSTER_BEAT_DIR" && echo "$code" >".exit.$RANK" && mv ".exit.$RANK" "rank_$RANK.exit"
exit "$code"
"""


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that one launch needs, decided."""

    run_dir: Path
    recipe_dir: Path
    attempt: int
    token: int
    command: str
    nodes: Sequence[str]
    ranks_per_node: int
    cpus_per_rank: Optional[int]
    resume: Optional[Path]
    beat_dir: Path
    master_addr: str
    master_port: int
    step: Optional[Step] = None  # a user's own srun line: his options, folder and output
    skip: str = ""  # windows of batches that are left out
    container: Optional[Container] = None  # None: the ranks run on the host

    @property
    def num_ranks(self) -> int:
        """World size."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def log_dir(self) -> Path:
        """rank_<r>.log of this attempt; never overwritten by a later one."""
        return self.run_dir / "logs" / f"attempt_{self.attempt:03d}"


def srun_argv(plan: LaunchPlan) -> list[str]:
    """The srun line of the ranks.

    --overlap: an old step that Slurm still believes in must not block this one. --no-kill: losing a
    node is for the supervisor to judge. --kill-on-bad-exit: a dead rank ends its peers.
    """
    ours = [
        *("--overlap", "--no-kill", "--kill-on-bad-exit=1", "--wait=0"),
        *(f"--nodes={len(plan.nodes)}", f"--ntasks={plan.num_ranks}"),
        *(f"--ntasks-per-node={plan.ranks_per_node}", f"--nodelist={','.join(plan.nodes)}"),
    ]
    program = ["sh", "-c", _RANK_SH]
    if plan.step is not None:  # of two equal options srun takes the last
        names = [*contract(plan), "PYTHONPATH"]
        export = plan.step.export_option(names)
        places = (plan.run_dir, _own_place())
        his = containers.own_options(plan.step.options, *places, names, os.environ)
        return ["srun", *his, *ours, f"--chdir={plan.step.folder}", *export, *program]
    cpus = [f"--cpus-per-task={plan.cpus_per_rank}"] if plan.cpus_per_rank else []
    return [
        "srun",
        *ours,
        *("--distribution=block", "--cpu-bind=none", f"--job-name=attempt{plan.attempt}"),
        *cpus,
        f"--chdir={plan.run_dir / 'recipe'}",
        *_container_options(plan),
        *("--input=none", *program),
    ]


def _container_options(plan: LaunchPlan) -> list[str]:
    if plan.container is None or plan.container.docker:
        return []
    inside = containers.environment(plan.container, _own_place())
    names = [*contract(plan), *inside]
    places = (plan.run_dir, plan.recipe_dir, _own_place())
    return containers.srun_options(plan.container, *places, names)


def _own_place() -> str:
    """Where `resume` is: a folder or muster.pyz."""
    return step_environment()["PYTHONPATH"].split(os.pathsep)[0]


def environment(plan: LaunchPlan) -> dict[str, str]:
    """Our environment plus the contract's variables."""
    inside = containers.environment(plan.container, _own_place()) if plan.container else {}
    # Of somebody's own srun line they are a part.
    pyxis = {k: v for k, v in os.environ.items() if plan.step and k.startswith(slurm.PYXIS)}
    given = {**step_environment(), **pyxis, **contract(plan), **inside}
    if plan.container is not None and plan.container.docker:
        given["MUSTER_COMMAND"] = _in_docker(plan, plan.container, inside)
    return given


def _in_docker(plan: LaunchPlan, container: Container, inside: Mapping[str, str]) -> str:
    places = (plan.run_dir, plan.recipe_dir, _own_place())
    return docker.command(
        container.image,
        containers.all_mounts(container, *places),
        str(plan.run_dir / "recipe"),
        [*contract(plan), *inside, *container.wins],
        plan.command,
        gpus=container.gpus,
    )


def contract(plan: LaunchPlan) -> dict[str, str]:
    """The variables of the contract, but for those that differ from rank to rank."""
    return {
        "MUSTER_RUN_DIR": str(plan.run_dir),
        "MUSTER_RECIPE_DIR": str(plan.recipe_dir),
        "MUSTER_ATTEMPT": str(plan.attempt),
        "MUSTER_TOKEN": str(plan.token),
        "MUSTER_RESUME": str(plan.resume or ""),
        "MUSTER_SKIP": plan.skip,
        "MUSTER_BEAT_DIR": str(plan.beat_dir),
        "MUSTER_COMMAND": plan.command,
        # The rank's shell opens its log itself: srun reads % and \\ in a path as something else.
        "MUSTER_LOG_DIR": str(plan.log_dir) if plan.step is None else "",
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
        "LOCAL_WORLD_SIZE": str(plan.ranks_per_node),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass
class Launched:
    """A running launch."""

    plan: LaunchPlan
    srun: subprocess.Popen[bytes]

    def poll(self) -> Optional[int]:
        """Exit code of srun, None while it runs. Zero or not is all it is good for."""
        return self.srun.poll()

    def end(self) -> None:
        """Leave the step to its fate: the guards kill the ranks, so it ends where a node lives.

        Waiting for srun or scancel would mean waiting for a dead node to answer.
        """
        if self.srun.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.srun.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.srun.wait(1)


def launch(plan: LaunchPlan) -> Launched:
    """Start the ranks."""
    plan.log_dir.mkdir(parents=True, exist_ok=True)
    with (plan.log_dir / "srun.log").open("ab") as log:
        srun = subprocess.Popen(
            srun_argv(plan),
            env=environment(plan),
            stdin=subprocess.DEVNULL if plan.step is None else None,
            stdout=log if plan.step is None else None,
            stderr=log if plan.step is None else None,
            start_new_session=True,
        )
    return Launched(plan, srun)
