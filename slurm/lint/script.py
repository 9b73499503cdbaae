"""A batch script as data: its lines, the options that sbatch takes from it, and its commands."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from slurm.lint import directives, shell
from slurm.lint.directives import Directive
from slurm.lint.finding import Edit
from slurm.lint.options import SBATCH, Option, parse
from slurm.lint.programs import Expansion, Program, Srun, is_launch, program, srun

MAX_BYTES = 4 << 20
"""Slurm's own limit for a batch script (SchedulerParameters=max_script_size, default 4 MiB)."""

_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL | re.ASCII)
_SHELLS = frozenset({"bash", "sh", "dash", "ksh", "zsh"})
_OTHER_HASHES = "ash csh tcsh fish python pypy perl ruby Rscript julia octave tclsh expect awk gawk"
_HASH_COMMENTS = _SHELLS | frozenset(_OTHER_HASHES.split())
"""Interpreters for which a line that begins with # is a comment."""
_CODING = re.compile(r"[ \t\f]*#.*coding[:=]")
"""Python and Ruby look for it in the first two lines only."""
_MAX_VALUE = 10_000
"""Characters of a variable that are looked at."""


@dataclass(frozen=True)
class Given:
    """An option of sbatch, and the line it stands on."""

    option: Option
    line: int


class Script:
    """One batch script. Everything is worked out from its text, once, when it is asked for."""

    def __init__(self, text: str, folder: Path, here: Path) -> None:
        """`folder`: where the file is; `here`: from where it may be submitted."""
        self.text = text
        self.folder = folder
        self.here = here
        self.lines = text.split("\n")
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    @functools.cached_property
    def directives(self) -> list[Directive]:
        """Every #SBATCH line, those that come too late as well."""
        return directives.read([line.rstrip("\r") for line in self.lines])

    @functools.cached_property
    def given(self) -> list[Given]:
        """Options that sbatch sees, in order."""
        seen = [one for one in self.directives if not one.late]
        found = []
        for one in seen:
            options, _ = parse(one.words, SBATCH)
            found += [Given(option, one.line) for option in options]
        return found

    @functools.cached_property
    def options(self) -> dict[str, Given]:
        """{long name: the one that counts, which is the last}."""
        return {one.option.name: one for one in self.given}

    def value(self, name: str) -> str | None:
        """The value of an option; None: it is not given."""
        return self.options[name].option.value if name in self.options else None

    @functools.cached_property
    def interpreter(self) -> str:
        """The program that the first line names, without its folder: bash, python3, ..."""
        first = self.lines[0].rstrip("\r")
        words = first[2:].split() if first.startswith("#!") else []
        names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
        return next((name for name in names if name != "env"), "")

    @property
    def is_shell(self) -> bool:
        """Whether the rules about commands apply."""
        return self.interpreter in _SHELLS or not self.lines[0].startswith("#!")

    @functools.cached_property
    def reading(self) -> shell.Reading:
        """What the shell finds; nothing if the script is in another language."""
        return shell.read(self.text.replace("\r\n", " \n") if self.is_shell else "")

    @property
    def commands(self) -> list[shell.Command]:
        """The commands of a shell script; none if it is another language."""
        return self.reading.commands

    @functools.cached_property
    def assigned(self) -> list[tuple[str, str, int]]:
        """(name, value, line) of every variable that the script sets."""
        found = []
        for command in self.commands:
            found += [(name, value, command.line) for name, value in command.assignments]
            words = command.texts
            if words[:1] and words[0] in _DECLARING:
                matches = (_ASSIGNED.fullmatch(word) for word in words[1:])
                found += [(m[1], m[2], command.line) for m in matches if m]
        return found

    @functools.cached_property
    def variables(self) -> dict[str, str]:
        """{name: everything that it is ever set to}."""
        values: dict[str, list[str]] = {}
        for name, value, _ in self.assigned:
            values.setdefault(name, []).append(value)
        return {name: " ".join(found)[:_MAX_VALUE] for name, found in values.items()}

    @functools.cached_property
    def programs(self) -> list[Program]:
        """What the commands start."""
        expansion = Expansion(self.variables)
        return [program(command, expansion) for command in self.commands]

    @functools.cached_property
    def sruns(self) -> list[Srun]:
        """Every srun."""
        return [found for one in self.programs for found in [srun(one)] if found]

    @functools.cached_property
    def launches(self) -> list[Program]:
        """Commands that do the work of the job, substitutions left out."""
        short = {id(one.program) for one in self.sruns if one.short}
        return [
            one
            for one in self.programs
            if one.command.depth == 0 and id(one) not in short
            if is_launch(one.name, one.arguments)
        ]

    @functools.cached_property
    def auto_resumes(self) -> list[Srun]:
        """Every srun with --auto-resume=1."""
        return [one for one in self.sruns if one.auto_resume]

    @functools.cached_property
    def has_address(self) -> bool:
        """Somewhere in it the ranks are told where to meet."""
        return "MASTER_ADDR" in self.text

    @functools.cached_property
    def kept_going(self) -> bool:
        """Something restarts what failed (muster, --auto-resume): the job can be run again."""
        runs = (one.name == "muster" and one.arguments[:1] for one in self.programs)
        return bool(self.auto_resumes) or any(words in (("run",), ("srun",)) for words in runs)

    @property
    def top(self) -> int:
        """The line of the last option that sbatch sees, where a missing one belongs."""
        first = 2 if _CODING.match("".join(self.lines[1:2])) else 1
        return max((one.line for one in self.directives if not one.late), default=first)

    def add_option(self, line: str) -> tuple[Edit, ...]:
        """The edit that adds an #SBATCH line to the others; none where it would be no comment."""
        if self.interpreter.rstrip(".0123456789") not in _HASH_COMMENTS:
            return ()
        place = self.starts[self.top] if self.top < len(self.starts) else len(self.text)
        newline = "" if place == 0 or self.text[place - 1] == "\n" else "\n"
        return (Edit(place, place, f"{newline}{line}\n"),)

    def set_options(self) -> set[str]:
        """Shell options that are on: e, u, pipefail, x; from the first line and from `set`."""
        found: set[str] = set()
        first = self.lines[0].split()[1:] if self.lines[0].startswith("#!") else []
        for words in [first, *(c.texts[1:] for c in self.commands if c.texts[:1] == ["set"])]:
            found |= _set_words(words)
        return found


_LONG = {"errexit": "e", "nounset": "u", "xtrace": "x"}


def _set_words(words: list[str]) -> set[str]:
    found: set[str] = set()
    for place, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--"):
            found |= set(word[1:].replace("o", ""))
            if word.endswith("o") and place + 1 < len(words):
                name = words[place + 1]
                found.add(_LONG.get(name, name))
    return found
