"""`muster lint FILE...` and `muster slurm-conf`: Slurm's files, those of jobs and its own."""

from __future__ import annotations

import argparse
import json
import stat
import sys
from pathlib import Path
from typing import Any

from muster.errors import CreateError, DataError, MusterError, UsageError
from slurm.conf import command
from slurm.files import replace
from slurm.lint.finding import ERROR, SEVERITIES, WARNING, Finding


def add_parser(subparsers: Any) -> None:
    """Add `lint` and `slurm-conf`."""
    command.add_parser(subparsers)
    text = "what will go wrong with a batch script, and when"
    lint = subparsers.add_parser("lint", help=text, description=text)
    lint.set_defaults(verb="lint", func=_lint)
    lint.add_argument("files", nargs="*", metavar="FILE", type=Path)
    lint.add_argument("--fix", action="store_true", help="make the edits that are safe")
    lint.add_argument("--json", action="store_true", help="a list of findings as JSON")
    lint.add_argument("--list", action="store_true", help="every rule, with its reason")
    lint.add_argument(
        "--level", choices=SEVERITIES, default=WARNING, help="error: leave warnings out"
    )


def _lint(args: argparse.Namespace) -> int:
    if args.list:
        from slurm.lint import catalogue  # noqa: PLC0415

        print("\n".join(catalogue.lines()))
        return 0
    if not args.files:
        raise UsageError("no file", "there is nothing to look at", "muster lint run.sbatch")
    found: list[Finding] = []
    problems: list[MusterError] = []
    for path in args.files:
        try:
            found += _one(path, fix=args.fix)
        except MusterError as error:  # noqa: PERF203 - the other files are looked at all the same
            problems.append(error)
    shown = [one for one in found if args.level == WARNING or one.rule.severity == ERROR]
    if args.json:
        print(json.dumps([one.to_json() for one in shown], indent=1))
    else:
        for one in shown:
            print(_printable(str(one)))
    for problem in problems:
        print(_printable(f"muster lint: {problem}"), file=sys.stderr)
    return problems[0].code if problems else int(bool(shown))


def _printable(text: str) -> str:
    """One line, whatever was in the name of a file."""
    line = " ".join(text.split())
    return line.encode("utf-8", "backslashreplace").decode()


def _one(path: Path, *, fix: bool) -> list[Finding]:
    from slurm.lint.fix import fixed  # noqa: PLC0415  (every start of muster is paid for)
    from slurm.lint.linter import lint  # noqa: PLC0415
    from slurm.lint.script import MAX_BYTES  # noqa: PLC0415

    try:
        if fix and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            what = "is not a regular file, so --fix cannot write it"
            raise CreateError(str(path), what, "leave --fix out, or name a batch script")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(str(path), reason, "name batch scripts that you can read") from None
    if fix and len(data) <= MAX_BYTES:
        better = fixed(data, str(path), Path.cwd())
        if better != data:
            replace(path, better)
        data = better
    return lint(data, str(path), Path.cwd())
