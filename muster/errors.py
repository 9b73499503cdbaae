"""Errors that a person can act on: where it is, what is wrong, how to fix it, on one line.

Every failure that a user can cause or repair is a `MusterError`. The command line prints it as one
line and exits with its code, so scripts can branch on the code and people can read the fix. The
codes follow sysexits.h; docs/reference/exit_codes.md is the table, and a test compares the two.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class MusterError(Exception):
    """Base of all errors with a known fix.

    Args:
        where: the file, key, node or command that is concerned.
        what: what is wrong with it, with the value that was seen.
        fix: what to do, as a command where there is one.
    """

    code: ClassVar[int] = 1

    def __init__(self, where: str, what: str, fix: str) -> None:
        self.where, self.what, self.fix = where, what, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        what = self.what.rstrip(".")
        line = f"{self.where}: {what}{'' if what.endswith(('?', '!')) else '.'} Fix: {self.fix}"
        return " ".join(line.split())


class UsageError(MusterError):
    """The command line is wrong."""

    code = 64


class DataError(MusterError):
    """An input file is missing or damaged."""

    code = 65


class UnavailableError(MusterError):
    """A service or package that is needed is not there."""

    code = 69


class CreateError(MusterError):
    """A place that must be written or shared is not."""

    code = 73


class StorageError(MusterError):
    """Storage failed while in use: full, read-only, input/output error."""

    code = 74


class TemporaryError(MusterError):
    """It may work later without any change."""

    code = 75


class ConfigError(MusterError):
    """A configuration file or value is wrong."""

    code = 78


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
