"""What a command really starts: the program behind exec, timeout and env, and the parts of srun."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Optional

from slurm.lint.options import SRUN, Option, parse
from slurm.lint.shell import Command
from slurm.lint.words import Word

# Programs that start another one: options of theirs that take a value, and how many words of their
# own stand before it.
_WRAPPERS: dict[str, tuple[str, int]] = {
    "exec": ("-a", 0),
    "command": ("", 0),
    "builtin": ("", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "env": ("-u -C", 0),
    "nice": ("-n", 0),
    "ionice": ("-c -n", 0),
    "timeout": ("-k -s", 1),
    "stdbuf": ("-o -e -i", 0),
    "numactl": ("-N -m -C", 0),
    "taskset": ("", 1),
    "sudo": ("-u -g", 0),
}
_ONLY_ASKS = re.compile(r"-[A-Za-z]*[vV][A-Za-z]*")
"""`command -v srun` says where it is, and starts nothing."""
_VARIABLE = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
MAX_WRITTEN_OUT = 100_000
"""Words that variables of one script are written out to."""
_ARRAY = re.compile(r"\(?(.*?)\)?", re.DOTALL)
# What does not train, however it is started.
_SHORT_NAMES = (
    "hostname nvidia-smi rocm-smi ls mkdir rm cp cat df du uname true echo date env id lscpu sleep "
    "muster ibstat ibv_devinfo fi_info chmod ln mv touch rsync tar test which dcgmi enroot"
)
_SHORT = frozenset(_SHORT_NAMES.split())
_ANSWERS = frozenset({"help", "usage", "version"})
"""Options of srun after which it starts nothing."""
_LAUNCHER_NAMES = "srun torchrun mpirun mpiexec deepspeed accelerate composer ft_launcher"
_LAUNCHERS = frozenset(_LAUNCHER_NAMES.split())


@dataclass(frozen=True)
class Program:
    """What a command starts.

    Attributes:
        command: the command it stands in.
        name: without its folder; "" where there is none.
        arguments: its own, variables that the script sets written out.
        wrappers: exec, timeout, ... that start it.
        word: where its name stands in the file.
    """

    command: Command
    name: str
    arguments: tuple[str, ...]
    wrappers: frozenset[str]
    word: Optional[Word]

    @property
    def line(self) -> int:
        """Of the command."""
        return self.command.line


@dataclass(frozen=True)
class Srun:
    """One srun: its options by long name, and the words of what it starts."""

    program: Program
    options: Mapping[str, Option]
    rest: tuple[str, ...]

    @property
    def line(self) -> int:
        """Of the command."""
        return self.program.line

    @property
    def auto_resume(self) -> bool:
        """It asks for --auto-resume=1."""
        return "auto-resume" in self.options and self.options["auto-resume"].value != "0"

    @property
    def short(self) -> bool:
        """It only looks or prepares: one task, or a program that does not train, or none."""
        if not self.rest or self.program.command.depth > 0 or _ANSWERS & self.options.keys():
            return True
        one = self.options.get("ntasks")
        return PurePosixPath(self.rest[0]).name in _SHORT or (one is not None and one.value == "1")


def program(command: Command, expansion: Expansion) -> Program:
    """What a command starts."""
    words, place = command.words, 0
    wrappers = set()
    while place < len(words) and words[place].text in _WRAPPERS:
        name = words[place].text
        if name == "command" and any(_ONLY_ASKS.fullmatch(w.text) for w in words[place + 1 :][:1]):
            break
        wrappers.add(name)
        place = _behind(name, words, place + 1)
    arguments = [text for word in words[place + 1 :] for text in expansion.words(word.text)]
    head = words[place] if place < len(words) else None
    plain = head.text if head else ""
    return Program(command, plain.rpartition("/")[2], tuple(arguments), frozenset(wrappers), head)


def _behind(wrapper: str, words: Sequence[Word], place: int) -> int:
    """The place of what a wrapper starts, behind its own options and words."""
    valued, own = _WRAPPERS[wrapper]
    while place < len(words):
        text = words[place].text
        if not text.startswith("-") and not (wrapper in ("env", "sudo") and "=" in text):
            break
        place += 2 if text in valued.split() else 1
    return place + own


class Expansion:
    """Words that are nothing but a variable which the script sets, written out.

    For a whole script up to a limit, since a few lines can stand for gigabytes; what is beyond it
    stays as it stands.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._known: dict[str, list[str]] = {}
        self._left = MAX_WRITTEN_OUT

    def words(self, text: str) -> list[str]:
        """What a word is written out; itself if it is something else."""
        match = _VARIABLE.fullmatch(text)
        if not match or match[1] not in self._variables or self._left < 0:
            return [text]
        name = match[1]
        if name not in self._known:
            self._known[name] = _split(self._variables[name].strip())
        self._left -= len(self._known[name])
        return self._known[name]


def _split(value: str) -> list[str]:
    inner = _ARRAY.fullmatch(value) if value.startswith("(") else None
    return [word.strip("\"'") for word in (inner[1] if inner else value).split()]


def srun(one: Program) -> Optional[Srun]:
    """The parts of an srun; None: it is another program."""
    if one.name != "srun":
        return None
    options, rest = parse(one.arguments, SRUN)
    return Srun(one, {option.name: option for option in options}, tuple(rest))


def is_launch(name: str, arguments: Sequence[str]) -> bool:
    """Whether a program does the work of the job: its exit code is the job's."""
    if name in _LAUNCHERS:
        return True
    if name == "muster":
        return arguments[:1] in (("run",), ("srun",), ["run"], ["srun"])
    if name.startswith("python"):
        return any(a.endswith(".py") or a == "-m" for a in arguments[:6])
    return False
