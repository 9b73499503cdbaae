"""One word of a shell script: its quotes, expansions, arrays and patterns, none of them expanded.

shell.py reads the commands around it. Whatever is not closed goes on to the end of the file, as it
does for bash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DEPTH = 40
"""Command substitutions and arrays within each other; what lies deeper is text."""

BREAKS = frozenset(" \t\r\n;&|<>()")
_ANSI = re.compile(r"\$'((?:[^'\\]+|\\.)*)'?", re.DOTALL)
_QUOTES = r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\""
_PARENTHESES = re.compile(rf"{_QUOTES}|[()]", re.DOTALL)
_BRACKETS = re.compile(rf"{_QUOTES}|[\[\]]", re.DOTALL)


@dataclass(frozen=True)
class Word:
    """One word: `text` without its quotes, where it begins and ends in the file."""

    text: str
    start: int
    end: int
    quoted: bool = False


class WordReader:
    """Reads words; what is a command within one goes to `commands`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def commands(self, place: int, end: int, depth: int, *, closed: bool = False) -> int:
        """Read commands up to `end`, or to the parenthesis that closes them; returns where."""
        raise NotImplementedError

    def skip(self, place: int, end: int) -> int:
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

    def word(self, place: int, end: int, depth: int) -> tuple[Word, int]:
        """The word that begins here, and the place behind it."""
        text, start, quoted = self.text, place, False
        out: list[str] = []
        while place < end:
            sign = text[place]
            if sign == "(" and place > start and text[place - 1] in "=?*+@!":
                close = self._array(place + 1, end, depth)
                out.append(text[place:close])
                place = close
            elif sign in BREAKS:
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
            elif sign == "$" and (match := _ANSI.match(text, place, end)):
                out.append(match[1])
                place, quoted = match.end(), True
            elif sign in "$`":
                place = self._expansion(place, end, depth, out)
            else:
                out.append(sign)
                place += 1
        if place == start:  # nothing that a word can begin with: never stand still
            place += 1
        return Word("".join(out), start, place, quoted), place

    def nested(self, place: int, end: int, depth: int) -> int:
        """The commands of a substitution, up to the parenthesis that closes it."""
        if depth >= MAX_DEPTH:
            return self._balanced(place, end)
        return self.commands(place, end, depth + 1, closed=True)

    def arithmetic(self, place: int, end: int) -> int:
        """Past `...))`."""
        place = self._balanced(place, end)
        return place + 1 if place < end and self.text[place] == ")" else place

    def _array(self, place: int, end: int, depth: int) -> int:
        """Past an array or an extended pattern: words, and the parenthesis that closes it."""
        if depth >= MAX_DEPTH:
            return self._balanced(place, end)
        open_ = 1
        while place < end and open_:
            code = self.skip(place, end)
            if code > place:
                place = code
            elif self.text[place] in BREAKS:
                open_ += {"(": 1, ")": -1}.get(self.text[place], 0)
                place += 1
            else:
                _, place = self.word(place, end, depth + 1)
        return place

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
                place = self._expansion(place, end, depth, out, quoted=True)
            else:
                out.append(sign)
                place += 1
        return place

    def _expansion(
        self, place: int, end: int, depth: int, out: list[str], *, quoted: bool = False
    ) -> int:
        """`$...` or a backtick: kept as it stands; commands in it are read."""
        text, start = self.text, place
        if text.startswith("$((", place):
            place = self.arithmetic(place + 3, end)
        elif text.startswith("$[", place):
            place = self._balanced(place + 2, end, _BRACKETS)
        elif text.startswith("$(", place):
            place = self.nested(place + 2, end, depth)
        elif text.startswith("${", place) and depth < MAX_DEPTH:
            place = self._braces(place + 2, end, depth, quoted=quoted)
        elif text[place] == "`":
            close = text.find("`", place + 1, end)
            close = end if close < 0 else close
            if depth < MAX_DEPTH:
                self.commands(place + 1, close, depth + 1)
            place = min(close + 1, end)
        else:
            place += 1
        out.append(text[start:place])
        return place

    def _braces(self, place: int, end: int, depth: int, *, quoted: bool) -> int:
        """Past `...}`; a single quote is one only outside of double quotes."""
        text, ignored = self.text, list[str]()
        while place < end:
            sign = text[place]
            if sign == "}":
                return place + 1
            if sign == "\\":
                place = min(place + 2, end)
            elif sign == '"':
                place = self._double_quotes(place + 1, end, min(depth + 1, MAX_DEPTH), ignored)
            elif text.startswith("$(", place) and depth < MAX_DEPTH:
                place = self._expansion(place, end, depth, ignored)
            elif sign == "$" and not quoted and (match := _ANSI.match(text, place, end)):
                place = match.end()
            elif not quoted and sign == "'":
                place = max(text.find("'", place + 1, end), place) + 1
            else:
                place += 1
        return place

    def _balanced(self, place: int, end: int, pattern: re.Pattern[str] = _PARENTHESES) -> int:
        """The place behind what closes the parenthesis or bracket in front of `place`."""
        open_ = 1
        for match in pattern.finditer(self.text, place, end):
            open_ += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
            if not open_:
                return match.end()
        return end
