"""How the ranks are started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Optional

from slurm.lint.finding import ERROR, WARNING, Edit, Spot, rule
from slurm.lint.programs import Srun
from slurm.lint.script import Script

_ENDPOINT = re.compile(r"--rdzv[-_]endpoint(?:=|$)|--master[-_](?:addr|port)(?:=|$)")
_NUMBER_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_RANKS = ("torchrun", "torch.distributed", "deepspeed", "accelerate")


def _together(script: Script, one: Srun) -> bool:
    """Whether its tasks are ranks that need each other: one that is lost leaves all waiting."""
    words = " ".join(one.rest)
    return script.has_address or any(name in words for name in _RANKS)


def _insert(script: Script, one: Srun, text: str) -> tuple[Edit, ...]:
    word = one.program.word
    if word is None or not _together(script, one):
        return ()
    return (Edit(word.end, word.end, f" {text}"),)


def _long_sruns(script: Script) -> Iterator[Srun]:
    for one in script.sruns:
        if not one.short and not one.auto_resume:
            yield one


@rule(
    WARNING,
    why="""When one rank dies the others wait for it in a collective, for ever or until a time-out
    of many minutes, and srun waits with them. (KillOnBadExit=1 in slurm.conf does the same for
    every step.)""",
    fix="srun --kill-on-bad-exit=1",
)
def kill_on_bad_exit(script: Script) -> Iterator[Spot]:
    """The step ends when a rank fails."""
    if "SLURM_KILL_BAD_EXIT" in script.variables:
        return
    for one in _long_sruns(script):
        given = one.options.get("kill-on-bad-exit")
        if given is None:
            edits = _insert(script, one, "--kill-on-bad-exit=1")
            yield Spot(one.line, "srun without --kill-on-bad-exit", edits)
        elif given.value == "0":
            yield Spot(one.line, "srun --kill-on-bad-exit=0 lets the other ranks wait")


@rule(
    WARNING,
    why="""When one task has ended well and another hangs, srun waits for it without a limit, and
    the job holds its GPUs until its own time limit.""",
    fix="srun --wait=60 (seconds after the first task has ended), or timeout in front of it",
)
def srun_wait(script: Script) -> Iterator[Spot]:
    """An srun has a limit: --wait, --time or timeout."""
    if "SLURM_WAIT" in script.variables:
        return
    for one in _long_sruns(script):
        given = one.options.get("wait")
        limited = "time" in one.options or "timeout" in one.program.wrappers
        if not limited and (given is None or given.value == "0"):
            edits = _insert(script, one, "--wait=60") if given is None else ()
            yield Spot(one.line, "srun without --wait waits for a task that hangs", edits)


@rule(
    WARNING,
    why="""Since Slurm 22.05 srun does not take --cpus-per-task from sbatch: each task gets one CPU,
    and the data loaders crawl.""",
    fix='srun --cpus-per-task="$SLURM_CPUS_PER_TASK", or export SRUN_CPUS_PER_TASK',
)
def cpus_not_inherited(script: Script) -> Iterator[Spot]:
    """The CPUs per task that sbatch was asked for are asked for again at srun."""
    given = script.options.get("cpus-per-task")
    if given is None or given.option.value == "1" or "SRUN_CPUS_PER_TASK" in script.variables:
        return
    for one in _long_sruns(script):
        if "cpus-per-task" not in one.options and "exact" not in one.options:
            word = one.program.word
            text = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"'
            edits = (Edit(word.end, word.end, text),) if word else ()
            yield Spot(one.line, f"srun does not get the {given.option.value} CPUs per task", edits)


@rule(
    ERROR,
    why="""The address belongs to one machine. When it is replaced or the job starts elsewhere, all
    ranks wait for one that does not exist.""",
    fix='take the first node of the step: scontrol show hostnames "$SLURM_JOB_NODELIST"',
)
def fixed_address(script: Script) -> Iterator[Spot]:
    """No address of a node is written down for the rendezvous."""
    for value, line in _meeting_points(script):
        host = value.rpartition(":")[0] if ":" in value else value
        if _NUMBER_ADDRESS.fullmatch(host) and host != "127.0.0.1":
            yield Spot(line, f"the ranks meet at {host}, whatever the job's nodes are")


@rule(
    WARNING,
    why="""What is left of the last attempt, or another job on the node, still holds the port:
    'address already in use'.""",
    fix="derive it from the job: MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
)
def fixed_port(script: Script) -> Iterator[Spot]:
    """The port of the rendezvous is the job's own."""
    for value, line in _meeting_points(script):
        port = value.rpartition(":")[2]
        if port.isdigit() and 1 < len(port) < 6 and "." not in value.rpartition(":")[2]:
            yield Spot(line, f"every job meets at port {port}")
            return


def _meeting_points(script: Script) -> Iterator[tuple[str, int]]:
    """Values that say where ranks meet, with their lines."""
    for name, value, line in script.assigned:
        if name in ("MASTER_ADDR", "MASTER_PORT"):
            yield value, line
    for one in script.programs:
        words = [text for word in one.arguments for text in word.split()]
        for place, word in enumerate(words):
            match = _ENDPOINT.match(word)
            if match:
                value = word[match.end() :]
                yield value or "".join(words[place + 1 : place + 2]), one.line


@rule(
    WARNING,
    why="""sbatch --nodes=8, or a requeue with other nodes, leaves the number in the script as it
    is: the ranks wait for nodes that are not there, or leave some idle.""",
    fix='torchrun --nnodes="$SLURM_NNODES"',
)
def fixed_node_count(script: Script) -> Iterator[Spot]:
    """The number of nodes comes from the allocation."""
    for one in script.programs:
        value = _option(list(one.arguments), "--nnodes")
        if value and value.isdigit() and value != "1":
            yield Spot(one.line, f"--nnodes={value} stays {value}, whatever the job has")


@rule(
    WARNING,
    why="""torchrun restarts within a node that may be the sick one, and beside whatever restarts
    the job; with gloo and one agent its second rendezvous does not even come about.""",
    fix="--max-restarts=0, and let one owner restart: muster run, or a requeue",
)
def two_owners(script: Script) -> Iterator[Spot]:
    """Only one program restarts the ranks."""
    for one in script.programs:
        value = _option(list(one.arguments), "--max-restarts")
        if value and value.isdigit() and value != "0":
            yield Spot(one.line, f"torchrun --max-restarts={value} restarts beside Slurm")


def _option(words: list[str], name: str) -> Optional[str]:
    """The value of a program's option, in either spelling, however deep it is quoted."""
    flat = [text for word in words for text in word.split()]
    for place, word in enumerate(flat):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            return value if equals else "".join(flat[place + 1 : place + 2])
    return None
