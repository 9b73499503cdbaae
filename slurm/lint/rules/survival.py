"""What lets a job come back after a lost node, a preemption or its time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Optional

from slurm.lint.finding import ERROR, WARNING, Spot, first, rule
from slurm.lint.script import Script

_SIGNAL = re.compile(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@([0-9]{1,9}))?", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,9}")
_LEAST_S = 60


@rule(
    WARNING,
    why="""Where the cluster has JobRequeue=0, a node that is lost ends the job for good. Say
    --no-requeue if the job must not run twice.""",
    fix="add '#SBATCH --requeue', or '#SBATCH --no-requeue' if that is meant",
)
def requeue(script: Script) -> Iterator[Spot]:
    """The script says whether the job may be requeued."""
    if not {"requeue", "no-requeue"} & script.options.keys():
        edits = script.add_option("#SBATCH --requeue") if script.kept_going else ()
        yield Spot(script.top, "neither --requeue nor --no-requeue is given", edits)


@rule(
    WARNING,
    why="""At the time limit Slurm kills the job, and everything since the last checkpoint is lost.
    A signal some minutes before gives time to save.""",
    fix="add '#SBATCH --signal=B:USR1@180' and save when it comes",
)
def signal(script: Script) -> Iterator[Spot]:
    """The job is told before its time is over."""
    if "signal" not in script.options:
        edits = script.add_option("#SBATCH --signal=B:USR1@180") if _is_handed(script) else ()
        yield Spot(script.top, "--signal is not given", edits)


def _is_handed(script: Script) -> bool:
    """Something of muster stands in the place of the shell, and knows the signal."""
    last = next((p for p in reversed(script.programs) if p.command.depth == 0 and p.name), None)
    return script.kept_going and last is not None and "exec" in last.wrappers


@rule(
    ERROR,
    why="""With B: only the shell gets the signal. Without a trap it dies of it and the job with it,
    so what should save the work ends it; and bash runs a trap only when the command in the
    foreground has ended, which srun has not.""",
    fix="start srun with 'exec', or trap the signal, start srun with '&' and 'wait' for it",
)
def signal_lost(script: Script) -> Iterator[Spot]:
    """A signal to the batch shell reaches somebody who saves."""
    given = script.options.get("signal")
    match = _SIGNAL.fullmatch(given.option.value) if given else None
    if not given or not match or "B" not in (match[1] or "").upper() or not script.commands:
        return
    shell_ends = [p for p in script.programs if "exec" in p.wrappers and p.name]
    if shell_ends:
        return
    names = {match[2].upper(), f"SIG{match[2].upper()}", {"USR1": "10", "USR2": "12"}.get(match[2])}
    traps = [p for p in script.programs if p.name == "trap" and names & set(p.arguments)]
    in_front = next((one for one in script.launches if not one.command.in_background), None)
    yield from first(
        None if traps else Spot(given.line, f"nobody traps {match[2]}, the shell dies of it"),
        Spot(in_front.line, f"the trap for {match[2]} waits until {in_front.name} has ended")
        if in_front
        else None,
    )


@rule(
    WARNING,
    why="""A checkpoint of many GB takes minutes to write, and Slurm looks at its clock once in a
    minute.""",
    fix="leave at least 60 s, better 180: '@180'; and more than that for the job itself",
)
def signal_time(script: Script) -> Iterator[Spot]:
    """The signal comes early enough to save, and after the job has begun."""
    given = script.options.get("signal")
    match = _SIGNAL.fullmatch(given.option.value) if given else None
    if not given or not match or match[3] is None:
        return
    before, limit = int(match[3]), limit_s(script)
    yield from first(
        Spot(given.line, f"{before} s before the end is late") if before < _LEAST_S else None,
        Spot(given.line, f"{before} s before the end is before the start: --time is {limit} s")
        if limit is not None and before >= limit
        else None,
    )


@rule(
    WARNING,
    why="""Without it the partition's limit holds, the signal before the end comes when nobody
    expects it or never, a job that hangs holds its GPUs for days, and backfill passes the job
    over.""",
    fix="add '#SBATCH --time=24:00:00', say: a run goes on in the next job",
)
def time_limit(script: Script) -> Iterator[Spot]:
    """The job has a time limit."""
    if "time" not in script.options:
        yield Spot(script.top, "--time is not given")


def limit_s(script: Script) -> Optional[int]:
    """The time limit of the script in seconds; None: none that can be read."""
    text = script.value("time") or ""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(_NUMBER.fullmatch(part) for part in [*parts, days or "0"]) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:  # days-hours, days-hours:minutes, days-hours:minutes:seconds
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


@rule(
    ERROR,
    why="""When the batch host itself is lost, such a job stays RUNNING without its script, and
    holds its GPUs until a person notices. muster has a guard for that, a plain script has none.""",
    fix="remove --no-kill, or run the program with 'muster run' or 'srun --auto-resume=1'",
)
def no_kill_alone(script: Script) -> Iterator[Spot]:
    """--no-kill is given only where something looks after the job."""
    if "no-kill" in script.options and script.is_shell and not script.kept_going:
        yield Spot(script.options["no-kill"].line, "--no-kill, and nobody looks after the job")


@rule(
    WARNING,
    why="""A node that is drained or replaced under another name is waited for, for ever, while
    others are idle.""",
    fix="remove the names; --exclude on the command line avoids a bad node for once",
)
def fixed_nodes(script: Script) -> Iterator[Spot]:
    """No node is named in the file."""
    for name in ("nodelist", "exclude", "nodefile"):
        given = script.options.get(name)
        if given:
            yield Spot(given.line, f"--{name}={given.option.value} names nodes")


@rule(
    WARNING,
    why="""A failure that comes back every time, such as a wrong path, runs again and again until
    somebody looks; with GPUs, at a price.""",
    fix="count the tries (SLURM_RESTART_COUNT counts requeues), stop when no new checkpoint came",
)
def endless(script: Script) -> Iterator[Spot]:
    """What starts the job again has an end."""
    counted = "SLURM_RESTART_COUNT" in script.text
    for one in script.programs:
        words = " ".join(one.arguments)
        again = one.name == "scontrol" and one.arguments[:1] == ("requeue",)
        itself = one.name == "sbatch" and ("$0" in words or "BASH_SOURCE" in words)
        if (again or itself) and not counted:
            yield Spot(one.line, f"'{one.name} {words}' again and again: nothing counts the tries")
    yield from _endless_loops(script)


def _endless_loops(script: Script) -> Iterator[Spot]:
    """`while true` or `until srun` around a launch, without any counting."""
    start: Optional[int] = None
    body: list[int] = []
    launches = {id(one.command) for one in script.launches}
    counting = False
    for command in script.commands:
        words = command.texts
        if "until" in command.keywords or (
            "while" in command.keywords and words in (["true"], [":"])
        ):
            start, body, counting = command.line, [], False
        if start is None:
            continue
        counting = counting or any(w.startswith("((") or "$((" in w for w in words)
        counting = counting or any("$((" in value for _, value in command.assignments)
        if id(command) in launches:
            body.append(command.line)
        if "done" in command.keywords:
            if body and not counting:
                yield Spot(start, f"the loop starts line {body[0]} for ever if it fails for ever")
            start = None
