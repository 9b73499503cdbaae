"""Damage what a node says: cut it, drown it, wrap it, whatever a sick machine or terminal does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from healthcheck import registry
from tests.harness.fake_tools.node import Answer, FakeNode
from tests.harness.fake_tools.rows import Edit


@dataclass(frozen=True)
class Source:
    """One thing that checks read: a question to a program, or a file.

    Attributes:
        program: whom they ask; None: it is a file.
        words: with which arguments; or the path of the file.
    """

    program: str | None
    words: str

    def __str__(self) -> str:
        return f"{self.program} {self.words}" if self.program else self.words

    def text(self, node: FakeNode) -> str | bytes:
        """What it says now."""
        if self.program is None:
            content = node.files[self.words]
            return content if isinstance(content, bytes) else str(content)
        return node.tools[self.program](self.words.split(" ")).out

    def damaged(self, change: Callable[[str | bytes], str | bytes]) -> Edit:
        """From now on it says something else."""

        def edit(node: FakeNode) -> None:
            if self.program is None:
                node.files[self.words] = change(self.text(node))
                return
            self._answer(node, lambda answer: replace(answer, out=str(change(answer.out))))

        return edit

    def _answer(self, node: FakeNode, change: Callable[[Answer], Answer]) -> None:
        """From now on the answer to exactly this question is another one."""
        assert self.program
        before = node.tools[self.program]

        def tool(arguments: Sequence[str]) -> Answer:
            answer = before(arguments)
            return change(answer) if " ".join(arguments) == self.words else answer

        node.tools[self.program] = tool

    def absent(self, node: FakeNode) -> None:
        """It says nothing at all: the program fails, the file is not there."""
        if self.program is None:
            node.files.pop(self.words, None)
        else:
            self._answer(node, lambda _: Answer(rc=1))


def sources(node: FakeNode, when: str, check: str | None = None) -> list[Source]:
    """All that the checks of a mode read on this node."""
    facts = node.facts(when, limit_s=registry.LIMIT_S[when])
    registry.run_checks([c for c in registry.discover() if check in (None, c.name)], facts)
    door = facts.env
    found = [Source(argv[0], " ".join(argv[1:])) for argv in door.asked]  # type: ignore[attr-defined]
    found += [Source(None, path) for path in sorted(door.looked_at)]  # type: ignore[attr-defined]
    return [
        source
        for source in dict.fromkeys(found)
        if (source.program or source.words) in (*node.tools, *node.files)
        and node.files.get(source.words, "") is not None
    ]


def _filled(byte: bytes) -> Callable[[str | bytes], str | bytes]:
    return lambda text: byte * len(text) if isinstance(text, bytes) else byte.decode() * len(text)


def _text(change: Callable[[str], str]) -> Callable[[str | bytes], str | bytes]:
    return lambda text: text if isinstance(text, bytes) else change(text)


NOISE = random.Random(1).randbytes(4000).decode("utf-8", "replace")
GONE: dict[str, Callable[[str | bytes], str | bytes]] = {
    "empty": lambda text: text[:0],
    "blanks": _filled(b" "),
    "line ends": _filled(b"\n"),
    "zeros": _filled(b"\0"),
    "noise": _text(lambda _: NOISE),
    "huge noise": _text(lambda _: (NOISE + "\n") * 250),
    "another language": _text(lambda _: "Es wurden keine Geräte gefunden: ß\n"),
}
"""After these nothing of what it said is left."""

WRAPPED: dict[str, Callable[[str | bytes], str | bytes]] = {
    "CRLF": _text(lambda text: text.replace("\n", "\r\n")),
    "colours": _text(lambda text: "".join(f"\x1b[1;31m{x}\x1b[0m\n" for x in text.split("\n"))),
    "a byte order mark": _text(lambda text: "\ufeff" + text),
    "twice": lambda text: text * 2,
    "indented": _text(lambda text: "".join(f"    {x}\n" for x in text.split("\n"))),
    "upper case": _text(str.upper),
    "backwards": _text(lambda text: text[::-1]),
}
"""After these it is all there, in a form that nobody promised to understand."""


def cuts(length: int, most: int, seed: str) -> Iterator[int]:
    """Offsets at which to cut a text: all, or as many as are wanted, the last ones among them."""
    if length <= most:
        yield from range(length)
        return
    last = range(length - 1, max(length - 3, 0), -1)
    yield from {*last, *random.Random(seed).sample(range(length), most - len(last))}
