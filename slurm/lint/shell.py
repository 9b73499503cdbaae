"""The commands of a bash script, found without running it: a reader, not an interpreter.

It knows quotes, comments, continued lines, here-documents, pipes and lists, command substitution,
groups, functions, the patterns of `case` and what stands in [[ ]]; it expands nothing. It has to
get through whatever bytes somebody has in a file: what it does not understand it takes for text, it
never raises, and it reads each character once.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from itertools import islice

from slurm.lint.words import BREAKS, Word, WordReader

_OPERATOR = re.compile(
    r"<<<|<<-?|&>>?|>>|>&|<&|<>|>\||[<>]\(|[<>]|\|\||\|&|\||&&|;;&|;&|;;|;|&|\(\(|\(|\)"
)
_REDIRECTIONS = frozenset({"<<<", "<<", "<<-", "&>", "&>>", ">>", ">&", "<&", "<>", ">|", "<", ">"})
_WORD_OPENERS = frozenset({"((", "<(", ">("})
_CLAUSE_ENDS = frozenset({";;", ";&", ";;&"})
_RESERVED = "if then elif else fi while until do done case esac function { } ! time coproc"
_KEYWORDS = frozenset(_RESERVED.split())
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=", re.ASCII)


@dataclass(frozen=True)
class Command:
    """One simple command.

    Attributes:
        line: where it begins, from 1.
        words: program and arguments; empty where only assignments or keywords stand.
        assignments: (name, value) in front of it.
        targets: what its redirections name.
        keywords: reserved words in front: while, then, {, ...
        after: the operator behind it: "", newline, ;, |, &&, ||, (, ...
        depth: of how many command substitutions it is part.
        in_pipe: its output goes into another command.
    """

    line: int
    words: tuple[Word, ...]
    assignments: tuple[tuple[str, str], ...] = ()
    targets: tuple[Word, ...] = ()
    keywords: tuple[str, ...] = ()
    after: str = ""
    depth: int = 0

    @property
    def texts(self) -> list[str]:
        """Program and arguments as text."""
        return [word.text for word in self.words]

    @property
    def in_pipe(self) -> bool:
        """Its output goes into another command."""
        return self.after in ("|", "|&")

    @property
    def in_background(self) -> bool:
        """It ends with &."""
        return self.after == "&"


@dataclass(frozen=True)
class Reading:
    """The commands of a script, nested ones too, in order of their lines.

    `here_lines` are the lines that belong to here-documents: data, not code.
    """

    commands: list[Command]
    here_lines: frozenset[int]


def read(text: str) -> Reading:
    """Read a whole script."""
    reader = _Reader(text)
    reader.commands(0, len(text), 0)
    ordered = sorted(reader.found, key=lambda command: command.line)
    return Reading(ordered, frozenset(reader.here_lines))


class _Reader(WordReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.found: list[Command] = []
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self.here_lines: set[int] = set()
        self._here: list[tuple[str, bool]] = []  # delimiters that the next newline begins

    def line(self, place: int) -> int:
        return bisect.bisect_left(self._line_ends, place) + 1

    def commands(self, place: int, end: int, depth: int, *, closed: bool = False) -> int:
        text, parts, groups, cases = self.text, _Parts(), 0, 0
        while place < end:
            code = self.skip(place, end)
            if code > place:
                place = code
                continue
            match = _OPERATOR.match(text, place, end)
            if text[place] == "\n":
                cases -= self._finish(parts, "\n", depth, cases)
                place = self._here_documents(place + 1, end)
            elif not match:
                place = self._next_word(place, end, depth, parts)
                if parts.begins("case", 3) and parts.words[-1].text == "in":
                    self._finish(parts, "", depth)
                    cases += 1
                    place = self._patterns(place, end, depth)
            elif match[0] in _REDIRECTIONS:
                place = self._redirection(match[0], match.end(), end, depth, parts)
            elif match[0] in _WORD_OPENERS:
                place = self._opened(match, end, depth, parts)
            else:
                cases -= self._finish(parts, match[0], depth, cases)
                place = match.end()
                groups += {"(": 1, ")": -1}.get(match[0], 0)
                if closed and groups < 0:
                    return place
                if cases and match[0] in _CLAUSE_ENDS:
                    place = self._patterns(place, end, depth)
        self._finish(parts, "", depth)
        return place

    def _next_word(self, place: int, end: int, depth: int, parts: _Parts) -> int:
        """A word; of [[ all that stands up to ]], where | and ( begin no command."""
        word, place = self.word(place, end, depth)
        parts.words.append(word)
        if not parts.begins("[[", 1):
            return place
        while place < end:
            code = self.skip(place, end)
            if code > place:
                place = code
            elif self.text[place] == "\n":
                place = self._here_documents(place + 1, end)
            elif self.text[place] in BREAKS:
                place += 1
            else:
                word, place = self.word(place, end, depth)
                parts.words.append(word)
                if word.text == "]]" and not word.quoted:
                    break
        return place

    def _patterns(self, place: int, end: int, depth: int) -> int:
        """Past the patterns of one clause of `case`; not past an `esac` in their place."""
        while place < end:
            code = self.skip(place, end)
            if code > place:
                place = code
                continue
            sign = self.text[place]
            if sign == "\n":
                place = self._here_documents(place + 1, end)
            elif sign in "(|":
                place += 1
            elif sign in BREAKS:  # the ) behind them, or nothing that belongs here
                return place + (sign == ")")
            else:
                word, after = self.word(place, end, depth)
                if word.text == "esac" and not word.quoted:
                    return place
                place = after
        return place

    def _opened(self, match: re.Match[str], end: int, depth: int, parts: _Parts) -> int:
        """Arithmetic, or a process in the place of a file: one word."""
        inside = match[0] != "(("
        place = match.end()
        place = self.nested(place, end, depth) if inside else self.arithmetic(place, end)
        parts.words.append(Word(self.text[match.start() : place], match.start(), place))
        return place

    def _finish(self, parts: _Parts, operator: str, depth: int, cases: int = 0) -> int:
        """Keep the command that has been read; returns how many of the `cases` it ends."""
        if operator == "\n" and parts.begins("case", 2):  # its `in` stands in the next line
            return 0
        keywords, words = parts.split()
        assignments = []
        for word in words:
            match = _ASSIGNMENT.match(word.text)
            if not match:
                break
            assignments.append((match[1], word.text[match.end() :]))
        words = words[len(assignments) :]
        if operator == "(":
            words = []  # the name of a function
        if words or assignments or keywords:
            self.found.append(
                Command(
                    line=self.line(parts.start or 0),
                    words=tuple(words),
                    assignments=tuple(assignments),
                    targets=tuple(parts.targets),
                    keywords=tuple(keywords),
                    after=operator,
                    depth=depth,
                )
            )
        parts.clear()
        return min(cases, keywords.count("esac"))

    def _redirection(self, operator: str, place: int, end: int, depth: int, parts: _Parts) -> int:
        last = parts.words[-1] if parts.words else None
        if last and last.text.isdigit() and last.end == place - len(operator):
            parts.words.pop()  # the 2 of 2>
        while place < end and self.text[place] in " \t":
            place += 1
        if place >= end or self.text[place] in "\n;&|()<>":  # the last as in `> >(tee log)`
            return place
        word, place = self.word(place, end, depth)
        if operator in ("<<", "<<-"):
            self._here.append((word.text, operator == "<<-"))
        else:
            parts.targets.append(word)
        return place

    def _here_documents(self, place: int, end: int) -> int:
        start = place
        for delimiter, tabs in self._here:
            while place < end:
                newline = self.text.find("\n", place, end)
                stop = end if newline < 0 else newline
                line = self.text[place:stop]
                place = min(stop + 1, end)
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
        if self._here:
            self.here_lines.update(range(self.line(start), self.line(place)))
        self._here.clear()
        return place


class _Parts:
    """What has been read of the current command."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.targets: list[Word] = []

    @property
    def start(self) -> int | None:
        places = [word.start for word in (*self.words[:1], *self.targets[:1])]
        return min(places, default=None)

    def begins(self, name: str, count: int) -> bool:
        """Whether the last `count` words begin with `name`, and it stands as a command."""
        place = len(self.words) - count
        if place < 0 or self.words[place].text != name or self.words[place].quoted:
            return False
        return all(_is_keyword(word) for word in islice(self.words, place))

    def split(self) -> tuple[list[str], list[Word]]:
        """The reserved words in front, and the words of the command behind them."""
        keywords, place = list[str](), 0
        while place < len(self.words) and _is_keyword(self.words[place]):
            keywords.append(self.words[place].text)
            if keywords[-1] == "case":
                return keywords, []
            place += 2 if keywords[-1] == "function" else 1  # its name is no command
        return keywords, self.words[place:]

    def clear(self) -> None:
        self.words, self.targets = [], []


def _is_keyword(word: Word) -> bool:
    return word.text in _KEYWORDS and not word.quoted
