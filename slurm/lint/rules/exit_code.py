"""Whether a failure of the training is a failure of the job."""

from __future__ import annotations

from collections.abc import Iterator

from slurm.lint.finding import ERROR, WARNING, Spot, rule
from slurm.lint.script import Script


@rule(
    WARNING,
    why="""Without -e bash goes on after a failure, without -u a misspelt variable is empty (a
    well-known script lost its whole parallel layout that way), without pipefail a pipe succeeds
    when its last part does.""",
    fix="write 'set -euo pipefail' below the #SBATCH lines",
)
def pipefail(script: Script) -> Iterator[Spot]:
    """A shell script of more than one command is strict: set -euo pipefail."""
    real = [one for one in script.commands if one.depth == 0 and one.words]
    if len(real) < 2 or script.interpreter not in ("bash", ""):
        return
    missing = [name for name in ("e", "u", "pipefail") if name not in script.set_options()]
    if missing:
        names = ", ".join(f"-{name}" if len(name) == 1 else name for name in missing)
        yield Spot(real[0].line, f"the script does not set {names}")


@rule(
    ERROR,
    why="""The exit code of a pipe is that of its last part, and tee always succeeds: the job is
    COMPLETED 0:0 though the training failed, is not requeued, and whoever depends on it starts.""",
    fix="'set -o pipefail', or let --output keep the log and leave the pipe out",
)
def pipe_hides_failure(script: Script) -> Iterator[Spot]:
    """A launch is not piped into something that hides its exit code."""
    if "pipefail" in script.set_options():
        return
    for one in script.launches:
        if one.command.in_pipe:
            yield Spot(one.line, f"the pipe behind {one.name} hides its exit code")


@rule(
    ERROR,
    why="The job is COMPLETED 0:0 though the training failed.",
    fix="remove it; where something must follow: 'rc=0; srun ... || rc=$?; ...; exit $rc'",
)
def failure_ignored(script: Script) -> Iterator[Spot]:
    """No launch is followed by '|| true' or the like."""
    launches = {id(one) for one in script.launches}
    for one, after in zip(script.programs, script.programs[1:]):
        forgiving = one.command.after == "||" and after.name in ("true", ":", "echo", "printf")
        if forgiving and id(one) in launches:
            yield Spot(one.line, f"'|| {after.name}' makes a failure of {one.name} a success")


@rule(
    ERROR,
    why="""A plain 'wait' succeeds whatever became of the processes: the job is COMPLETED 0:0 though
    the training failed.""",
    fix="keep the number ('srun ... & pid=$!') and wait for it: 'wait \"$pid\"'",
)
def wait_hides_failure(script: Script) -> Iterator[Spot]:
    """A launch in the background is waited for by its number."""
    behind = [one for one in script.launches if one.command.in_background]
    for one in script.programs:
        if behind and one.name == "wait" and not one.arguments and one.line >= behind[0].line:
            yield Spot(one.line, f"'wait' hides the exit code of {behind[0].name}")
            return


@rule(
    ERROR,
    why="When the batch script ends, Slurm ends what it left behind.",
    fix="wait for it: 'srun ... & pid=$!', then 'wait \"$pid\"'",
)
def not_waited_for(script: Script) -> Iterator[Spot]:
    """A launch in the background is waited for."""
    last = max((one.line for one in script.programs if one.name == "wait"), default=0)
    for one in script.launches:
        if one.command.in_background and last < one.line:
            yield Spot(one.line, f"nothing waits for {one.name}, and it ends with the script")


@rule(
    ERROR,
    why="""The exit code of a script is that of its last command: an 'echo done' makes a failed
    training a job that is COMPLETED 0:0.""",
    fix="'set -e', or keep it: 'rc=$?' after the launch and 'exit $rc' at the end",
)
def last_command_wins(script: Script) -> Iterator[Spot]:
    """Without set -e nothing that succeeds follows the launch."""
    if "e" in script.set_options() or not script.launches:
        return
    last = script.launches[-1]
    if last.command.in_pipe or last.command.in_background or last.command.after in ("||", "&&"):
        return
    rest = [one for one in script.programs if one.command.depth == 0 and one.line > last.line]
    rest = [one for one in rest if one.name]
    if rest and not any(one.name == "exit" for one in rest):
        yield Spot(rest[-1].line, f"'{rest[-1].name}' decides the exit code, not {last.name}")
