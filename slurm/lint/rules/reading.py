"""What sbatch refuses, and what it passes over without a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster.errors import did_you_mean
from slurm.lint.directives import is_command
from slurm.lint.finding import ERROR, WARNING, Edit, Spot, first, rule
from slurm.lint.options import SBATCH, SRUN
from slurm.lint.script import MAX_BYTES, Script

_LOOKS_LIKE = re.compile(r"\s*#\s*sbatch\b\s*-", re.IGNORECASE)
_UNEXPANDED = re.compile(r"\$\{?\w|\$\(|`")
_PATH_OPTIONS = ("output", "error", "input", "chdir")
_NO_EFFECT_TWICE = {"exclude", "quiet", "verbose", "mail-type"}


@rule(
    ERROR,
    why="sbatch refuses it: 'This does not look like a batch script'.",
    fix="make '#!/usr/bin/env bash' the first line",
)
def shebang(script: Script) -> Iterator[Spot]:
    """The first line names an interpreter."""
    if script.lines[0].startswith("#!"):
        return
    mark = script.text.startswith("\ufeff")
    says = "a byte order mark stands in front of it" if mark else "the first line is not #!"
    gone = len(script.text) - len(script.text.lstrip("\ufeff \t\r\n"))
    if script.text.startswith("#!", gone):
        yield Spot(1, says, (Edit(0, gone, ""),))
    else:
        yield Spot(1, says, (Edit(0, int(mark), "#!/usr/bin/env bash\n"),))


@rule(
    ERROR,
    why="sbatch refuses it: 'Batch script contains DOS line breaks'.",
    fix="save it with Unix line ends",
)
def line_ends(script: Script) -> Iterator[Spot]:
    r"""Lines end with \n alone."""
    places = [match.start() for match in re.finditer("\r\n", script.text)]
    if places:
        line = script.text.count("\n", 0, places[0]) + 1
        yield Spot(
            line, f"{len(places)} lines end with \\r\\n", tuple(Edit(p, p + 1, "") for p in places)
        )


@rule(ERROR, why="The controller refuses a script with a NUL.", fix="remove it")
def nul_byte(script: Script) -> Iterator[Spot]:
    """No character is a NUL."""
    place = script.text.find("\0")
    if place >= 0:
        yield Spot(script.text.count("\n", 0, place) + 1, "a NUL byte stands here")


@rule(
    ERROR,
    why="The controller refuses what is larger than its max_script_size, 4 MiB by default.",
    fix="put the data into a file of its own",
)
def size(script: Script) -> Iterator[Spot]:
    """The script is smaller than 4 MiB."""
    if len(script.text) > MAX_BYTES:
        yield Spot(1, f"{len(script.text) >> 20} MiB are more than Slurm takes")


@rule(
    ERROR,
    why="""sbatch stops reading at the first line that is neither blank nor a comment, so the job
    runs without the option and nobody is told.""",
    fix="move the line above the first command",
)
def late_option(script: Script) -> Iterator[Spot]:
    """Every #SBATCH line stands above the first command."""
    command = next((n for n, line in enumerate(script.lines, 1) if is_command(line)), 0)
    for one in script.directives:
        if one.late and one.words and one.line not in script.reading.here_lines:
            yield Spot(one.line, f"'{one.words[0]}' stands below the command in line {command}")


@rule(
    WARNING,
    why="""sbatch takes only lines that begin with #SBATCH, in capitals, without a blank in front
    or within; any other is a comment to it.""",
    fix="write '#SBATCH' at the start of the line; '##SBATCH' switches a line off plainly",
)
def not_an_option(script: Script) -> Iterator[Spot]:
    """A comment that looks like an #SBATCH line is one."""
    for number, line in enumerate(script.lines, start=1):
        if _LOOKS_LIKE.match(line) and not line.startswith("#SBATCH"):
            yield Spot(number, "sbatch does not see this line")
        if is_command(line):
            return


@rule(
    ERROR,
    why="""sbatch refuses the line; a value with a blank or a # in it needs quotes, and every quote
    its second one.""",
    fix="correct the line",
)
def bad_line(script: Script) -> Iterator[Spot]:
    """Every #SBATCH line can be read: quotes closed, only options, no ':' in front."""
    for one in script.directives:
        if one.late:
            continue
        if one.problem:
            yield Spot(one.line, one.problem)
        elif one.words and (stray := _stray(one.words)):
            yield Spot(one.line, f"'{stray}' is no option")


def _stray(words: tuple[str, ...]) -> str:
    """The first word that is neither an option nor the value of one."""
    from slurm.lint.options import parse  # noqa: PLC0415

    _, rest = parse(words, SBATCH)
    return rest[0] if rest else ""


@rule(
    ERROR,
    why="""An #SBATCH line ends with its line. The backslash is dropped, and the next line is read
    as something of its own.""",
    fix="write a second #SBATCH line",
)
def continued_option(script: Script) -> Iterator[Spot]:
    """No #SBATCH line ends with a backslash."""
    for one in script.directives:
        if one.text.rstrip().endswith("\\") and "#" not in one.text[1:]:
            yield Spot(one.line, "the line ends with a backslash")


@rule(
    ERROR,
    why="""sbatch reads the line before any shell does, so the job gets a folder called '$HOME' or a
    log called '${JOB}.out'. Slurm's own patterns (%j, %x, %u) do work in names of files.""",
    fix="write the value itself, %-patterns, or give the option on sbatch's command line",
)
def unexpanded(script: Script) -> Iterator[Spot]:
    """No #SBATCH line has a variable, a command substitution or a ~ in it."""
    for one in script.given:
        name, value = one.option.name, one.option.value
        if name == "wrap":
            continue
        if _UNEXPANDED.search(value) or (name in _PATH_OPTIONS and value.startswith("~")):
            yield Spot(one.line, f"'{value}' is taken as it stands")


@rule(
    ERROR,
    why="""sbatch refuses a script with an option that it does not have; --auto-resume and
    --kill-on-bad-exit belong to srun.""",
    fix="correct the name, or give it to srun",
)
def unknown_option(script: Script) -> Iterator[Spot]:
    """Every option is one of sbatch's."""
    for one in script.given:
        name = one.option.name
        if one.option.known:
            continue
        if len(name) > 1 and SRUN.full_name(name):
            yield Spot(one.line, f"--{name} is an option of srun, not of sbatch")
        else:
            dashes = "--" if len(name) > 1 else "-"
            hint = did_you_mean(name, SBATCH.takes)
            yield Spot(one.line, f"sbatch has no option {dashes}{name}.{hint}".rstrip("."))


@rule(
    WARNING,
    why="The last one counts; who reads the first one is wrong about the job.",
    fix="keep one of them",
)
def twice(script: Script) -> Iterator[Spot]:
    """No option is given twice with different values."""
    seen: dict[str, tuple[str, int]] = {}
    for one in script.given:
        name, value = one.option.name, one.option.value
        before, line = seen.setdefault(name, (value, one.line))
        if before != value and name not in _NO_EFFECT_TWICE:
            yield Spot(one.line, f"--{name}={value} replaces --{name}={before} of line {line}")


_CLOCK = re.compile(r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.IGNORECASE)


@rule(
    ERROR,
    why="""--time=1:30 is a minute and a half, --time=1.5 is refused. Slurm's forms: minutes,
    minutes:seconds, hours:minutes:seconds, days-hours.""",
    fix="write hours:minutes:seconds or days-hours:minutes:seconds",
)
def time_form(script: Script) -> Iterator[Spot]:
    """A time limit is in a form that means what it looks like."""
    given = script.options.get("time")
    if given and not _UNEXPANDED.search(value := given.option.value):
        parts = value.split(":")
        yield from first(
            None if _CLOCK.fullmatch(value) else Spot(given.line, f"'{value}' is no time"),
            Spot(given.line, f"{value} means {parts[0]} minutes and {parts[-1]} seconds")
            if len(parts) == 2 and "-" not in value
            else None,
        )
