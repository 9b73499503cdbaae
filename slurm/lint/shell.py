"""The commands of a bash script, found without running it: a reader, not an interpreter.

It knows quotes, comments, continued lines, here-documents, pipes and lists, command substitution
and groups; it expands nothing. It has to get through whatever bytes somebody has in a file: what it
does not understand it takes for text, it never raises, and it reads each character once.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

_MAX_DEPTH = 40
"""Command substitutions within each other; what lies deeper is text."""

_OPERATOR = re.compile(
    r"<<<|<<-?|&>>?|>>|>&|<&|<>|>\||[<>]\(|[<>]|\|\||\|&|\||&&|;;&|;&|;;|;|&|\(\(|\(|\)"
)
_REDIRECTIONS = frozenset({"<<<", "<<", "<<-", "&>", "&>>", ">>", ">&", "<&", "<>", ">|", "<", ">"})
_WORD_OPENERS = frozenset({"((", "<(", ">("})
_RESERVED = "if then elif else fi while until do done case esac select function { } ! time coproc"
_KEYWORDS = frozenset(_RESERVED.split())
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=", re.ASCII)
_BREAKS = frozenset(" \t\r\n;&|<>()")


@dataclass(frozen=True)
class Word:
    """One word: `text` without its quotes, where it begins and ends in the file."""

    text: str
    start: int
    end: int
    quoted: bool = False


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


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Command] = []
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self.here_lines: set[int] = set()
        self._here: list[tuple[str, bool]] = []  # delimiters that the next newline begins

    def line(self, place: int) -> int:
        return bisect.bisect_left(self._line_ends, place) + 1

    def commands(self, place: int, end: int, depth: int, *, closed: bool = False) -> int:
        """Read commands up to `end`, or to the parenthesis that closes them; returns where."""
        text, parts, groups = self.text, _Parts(), 0
        while place < end:
            code = self._skip(place, end)
            if code > place:
                place = code
                continue
            match = _OPERATOR.match(text, place, end)
            if text[place] == "\n":
                self._finish(parts, "\n", depth)
                place = self._here_documents(place + 1, end)
            elif not match:
                word, place = self._word(place, end, depth)
                parts.words.append(word)
            elif match[0] in _REDIRECTIONS:
                place = self._redirection(match[0], match.end(), end, depth, parts)
            elif match[0] in _WORD_OPENERS:
                place = self._opened(match, end, depth, parts)
            else:
                self._finish(parts, match[0], depth)
                place = match.end()
                groups += {"(": 1, ")": -1}.get(match[0], 0)
                if closed and groups < 0:
                    return place
        self._finish(parts, "", depth)
        return place

    def _skip(self, place: int, end: int) -> int:
        """Past blanks, continued lines and a comment."""
        while place < end:
            if self.text[place] in " \t\r":
                place += 1
            elif self.text.startswith("\\\n", place):
                place += 2
            elif self.text[place] == "#":
                newline = self.text.find("\n", place, end)
                return end if newline < 0 else newline
            else:
                break
        return place

    def _opened(self, match: re.Match[str], end: int, depth: int, parts: _Parts) -> int:
        """Arithmetic, or a process in the place of a file: one word."""
        inside = match[0] != "(("
        place = match.end()
        place = self._nested(place, end, depth) if inside else self._arithmetic(place, end)
        parts.words.append(Word(self.text[match.start() : place], match.start(), place))
        return place

    def _finish(self, parts: _Parts, operator: str, depth: int) -> None:
        keywords: list[str] = []
        words, line = parts.words, self.line(parts.start or 0)
        while words and not words[0].quoted and words[0].text in _KEYWORDS:
            keywords.append(words.pop(0).text)
        assignments = []
        while words:
            match = _ASSIGNMENT.match(words[0].text)
            if not match:
                break
            word = words.pop(0)
            assignments.append((match[1], word.text[match.end() :]))
        if words or assignments or keywords:
            self.found.append(
                Command(
                    line=line,
                    words=tuple(words),
                    assignments=tuple(assignments),
                    targets=tuple(parts.targets),
                    keywords=tuple(keywords),
                    after=operator,
                    depth=depth,
                )
            )
        parts.clear()

    def _redirection(self, operator: str, place: int, end: int, depth: int, parts: _Parts) -> int:
        last = parts.words[-1] if parts.words else None
        if last and last.text.isdigit() and last.end == place - len(operator):
            parts.words.pop()  # the 2 of 2>
        while place < end and self.text[place] in " \t":
            place += 1
        if place >= end or self.text[place] in "\n;&|()<>":  # the last as in `> >(tee log)`
            return place
        word, place = self._word(place, end, depth)
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

    def _word(self, place: int, end: int, depth: int) -> tuple[Word, int]:
        text, start, quoted = self.text, place, False
        out: list[str] = []
        while place < end:
            sign = text[place]
            if sign == "(" and place > start and text[place - 1] in "=?*+@!":
                close = self._balanced(place + 1, end)  # an array, or an extended pattern
                out.append(text[place:close])
                place = close
            elif sign in _BREAKS:
                break
            elif sign == "\\":
                out.append(text[place + 1 : place + 2].replace("\n", ""))
                place, quoted = min(place + 2, end), True
            elif sign == "'":
                close = text.find("'", place + 1, end)
                close = end if close < 0 else close
                out.append(text[place + 1 : close])
                place, quoted = min(close + 1, end), True
            elif sign == '"':
                place, quoted = self._double_quotes(place + 1, end, depth, out), True
            elif sign in "$`":
                place = self._expansion(place, end, depth, out)
            else:
                out.append(sign)
                place += 1
        if place == start:  # nothing that a word can begin with: never stand still
            place += 1
        return Word("".join(out), start, place, quoted), place

    def _double_quotes(self, place: int, end: int, depth: int, out: list[str]) -> int:
        text = self.text
        while place < end:
            sign = text[place]
            if sign == '"':
                return place + 1
            if sign == "\\" and text[place + 1 : place + 2] in ("$", "`", '"', "\\", "\n"):
                out.append("" if text[place + 1] == "\n" else text[place + 1])
                place += 2
            elif sign in "$`":
                place = self._expansion(place, end, depth, out)
            else:
                out.append(sign)
                place += 1
        return place

    def _expansion(self, place: int, end: int, depth: int, out: list[str]) -> int:
        """`$...` or a backtick: kept as it stands; commands in it are read."""
        text, start = self.text, place
        if text.startswith("$((", place):
            place = self._arithmetic(place + 3, end)
        elif text.startswith("$(", place):
            place = self._nested(place + 2, end, depth)
        elif text.startswith("${", place) and depth < _MAX_DEPTH:
            place = self._braces(place + 2, end, depth)
        elif text[place] == "`":
            close = text.find("`", place + 1, end)
            close = end if close < 0 else close
            if depth < _MAX_DEPTH:
                self.commands(place + 1, close, depth + 1)
            place = min(close + 1, end)
        else:
            place += 1
        out.append(text[start:place])
        return place

    def _nested(self, place: int, end: int, depth: int) -> int:
        if depth >= _MAX_DEPTH:
            return self._balanced(place, end)
        return self.commands(place, end, depth + 1, closed=True)

    def _braces(self, place: int, end: int, depth: int) -> int:
        text, ignored = self.text, list[str]()
        while place < end:
            sign = text[place]
            if sign == "}":
                return place + 1
            if sign == "\\":
                place = min(place + 2, end)
            elif sign == '"':
                place = self._double_quotes(place + 1, end, min(depth + 1, _MAX_DEPTH), ignored)
            elif text.startswith("$(", place) and depth < _MAX_DEPTH:
                place = self._expansion(place, end, depth, ignored)
            else:
                place += 1
        return place

    def _arithmetic(self, place: int, end: int) -> int:
        place = self._balanced(place, end)
        return place + 1 if place < end and self.text[place] == ")" else place

    def _balanced(self, place: int, end: int) -> int:
        """The place behind the parenthesis that closes the one in front of `place`."""
        open_ = 1
        while place < end:
            open_ += {"(": 1, ")": -1}.get(self.text[place], 0)
            place += 1
            if not open_:
                break
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

    def clear(self) -> None:
        self.words, self.targets = [], []
