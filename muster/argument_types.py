"""Numbers on command lines: `type=` of argparse takes nan, inf and -5 for numbers of anything."""

from __future__ import annotations

import argparse
import math


def finite(text: str) -> float:
    """A number that has an end; for argparse.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"'{text}' is no number")
    return number


def from_zero(text: str) -> float:
    """Such a number that is not below 0."""
    if finite(text) < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is below 0")
    return finite(text)


def above_zero(text: str) -> float:
    """Such a number that is above 0."""
    if finite(text) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not above 0")
    return finite(text)


def count(text: str) -> int:
    """A number of things: 1 or more.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or not text.isascii() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of things, 1 or more")
    return int(text)
