"""Node names in Slurm's short form: n1, n2, n3, head is `n[1-3],head`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def compress(names: Iterable[str]) -> str:
    """A host list that expands to the same names in the same order.

    Numbers of one width and one prefix are joined: n08, n09, n10 is n[08-10]; 9 and 10 are not of
    one width, and n[9-10] still means n9, n10, since a width counts only with a leading zero.
    """
    found: list[str] = []
    for (stem, numbered), group in itertools.groupby(map(_split, names), key=_kind):
        numbers = [number or "" for _, number in group]
        if not numbered or len(numbers) == 1:
            found += [f"{stem}{number}" for number in numbers]
        else:
            found.append(f"{stem}[{','.join(_ranges(numbers))}]")
    return ",".join(found)


def _kind(split: tuple[str, Optional[str]]) -> tuple[str, bool]:
    """What names have in common that go into one bracket."""
    return split[0], split[1] is not None


def _split(name: str) -> tuple[str, Optional[str]]:
    """What stands before the number at the end, and the number; None: it ends with none.

    Slurm 22.05 gives no names at all for a bracket that something follows.
    """
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[2]) if match else (name, None)


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number == str(int(last) + 1).zfill(_width(first)):
            last = number
            continue
        yield _range(first, last)
        first = last = number
    yield _range(first, last)


def _width(number: str) -> int:
    """How many digits the numbers of a range have at least: those of its first, if it is padded."""
    return len(number) if number.startswith("0") and len(number) > 1 else 1


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first}-{last}"
