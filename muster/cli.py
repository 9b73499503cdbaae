"""`muster VERB`: one small program for login node, compute node and controller.

Verb modules add their own arguments; this file only joins them and turns every error that has a
fix into one line and an exit code.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from muster.argument_types import finite
from muster.errors import DataError, MusterError

MODULES = (
    *("resume.cli", "healthcheck.cli", "lifecycle.cli", "muster.cluster.cli", "muster.image.cli"),
    "slurm.cli",
)
ALONE = {
    **dict.fromkeys(("guard", "caretake"), "resume.cli"),
    **dict.fromkeys(("create", "describe"), "lifecycle.cli"),
    "check": "healthcheck.cli",
}
"""Verbs that nodes start all the time, or first of all: each loads the module that has it only."""


_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


def _path(text: str) -> Path:
    """An empty word, as of a variable that is not set, would mean this folder."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no file")
    return Path(text)


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.register("type", Path, _path)
        self.register("type", float, finite)  # no wait knows what to do with nan or inf

    def error(self, message: str) -> None:  # type: ignore[override]
        """One line on stderr, exit code 64 (EX_USAGE)."""
        self.exit(64, f"{self.prog}: {message}. Fix: see '{self.prog} --help'\n")


def build_parser(verb: Optional[str] = None) -> argparse.ArgumentParser:
    """The parser of all verbs, or of those that stand in the same module as one of `ALONE`."""
    parser = _Parser(prog="muster", description="Training recipes for Slurm that keep training.")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    for name in [ALONE[verb]] if verb in ALONE else MODULES:
        importlib.import_module(name).add_parser(verbs)
    return parser


def _print_anything() -> None:
    """Names of files may be no text at all; what cannot be printed is shown with backslashes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _work(arguments: argparse.Namespace) -> int:
    """What the verb does; a path that no file can have is an error wherever it came from."""
    try:
        return int(arguments.func(arguments))
    except OSError as error:
        if error.errno not in _NO_PATH:
            raise
        raise DataError(str(error.filename), str(error.strerror), "name another path") from None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one verb; returns the exit code (docs/reference/exit_codes.md)."""
    _print_anything()
    words = list(sys.argv[1:] if argv is None else argv)
    rest: list[str] = []
    if words[:1] == ["run"] and "--" in words:  # the rest belongs to the training command
        rest = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    if words[:1] == ["srun"] and words[1:] not in (["-h"], ["--help"]):  # all of it is srun's
        words, rest = words[:1], words[1:]
    parser = build_parser(next(iter(words), None))
    arguments, extra = parser.parse_known_args(words)
    if "assignments" in arguments and all("=" in w and not w.startswith("-") for w in extra):
        arguments.assignments += extra  # argparse takes only the first row of positionals
    elif extra:
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    if rest:
        arguments.rest = rest
    try:
        return _work(arguments)
    except MusterError as error:
        print(f"muster {arguments.verb}: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left, e.g. `| head`
        return 1
    except KeyboardInterrupt:
        return 130
