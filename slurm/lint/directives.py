"""The #SBATCH lines of a script, read as sbatch reads them.

sbatch stops at the first line that is neither empty nor a comment. A line must start with #SBATCH,
at its very beginning. Its words follow rules of their own: quotes protect, a backslash does
unless a blank follows, a bare # begins a comment even within a word, and nothing is ever expanded.
A test compares this with what `sbatch -vvv` says of the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

MAGIC = "#SBATCH"
_BLANK = " \t\n\v\f\r"


@dataclass(frozen=True)
class Directive:
    """One #SBATCH line.

    Attributes:
        line: its number, from 1.
        words: its arguments, quotes removed.
        text: the line as it stands.
        late: stands below the first command, so sbatch never sees it.
        problem: why sbatch refuses the line; None: it does not.
    """

    line: int
    words: tuple[str, ...]
    text: str
    late: bool = False
    problem: Optional[str] = None


def is_command(line: str) -> bool:
    """Whether a line ends sbatch's reading: something that is neither blank nor a comment."""
    bare = line.lstrip(_BLANK)
    return bool(bare) and not bare.startswith("#")


def read(lines: list[str]) -> list[Directive]:
    """Every #SBATCH line of a script, those that come too late as well."""
    found: list[Directive] = []
    late = False
    for number, line in enumerate(lines, start=1):
        if line.startswith(MAGIC):
            words, problem = arguments(line[len(MAGIC) :])
            found.append(Directive(number, tuple(words), line, late, problem))
        elif is_command(line):
            late = True
    return found


def arguments(text: str) -> tuple[list[str], Optional[str]]:
    """The words of what follows #SBATCH, and why sbatch refuses the line, if it does."""
    words: list[str] = []
    place = 0
    while True:
        while place < len(text) and text[place] in _BLANK:
            place += 1
        if text[place : place + 1] == ":":
            return words, "a ':' stands where an option has to begin"
        if place >= len(text) or text[place] == "#":
            return words, None
        word, place, quote = _word(text, place)
        if quote:
            return words, f"a {quote} is not closed"
        if not word:  # sbatch reads no further than an empty "", and says nothing
            return words, None
        words.append(word)
        if text[place : place + 1] == "#":
            return words, None


def _word(text: str, place: int) -> tuple[str, int, str]:
    """A word, where it ends, and the quote that is still open there."""
    out: list[str] = []
    quote = ""
    while place < len(text):
        sign = text[place]
        if sign == "\\":  # in front of a blank it protects nothing, outside of quotes
            following = text[place + 1 : place + 2]
            if not quote and following in _BLANK:
                return "".join(out), place + 1, quote
            out.append(following)
            place += 2
            continue
        if quote:
            if sign == quote:
                quote = ""
            else:
                out.append(sign)
        elif sign in "\"'":
            quote = sign
        elif sign == "#" or sign in _BLANK:
            break
        else:
            out.append(sign)
        place += 1
    return "".join(out), place, quote
