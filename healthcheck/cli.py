"""`muster check`, `muster watch`, `muster burn-in`: arguments here, work in modules of their own.

Those are imported only when their verb runs: a health check starts every few seconds on every
node, and `muster run` should not pay for it either.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from muster.argument_types import above_zero, count, finite, from_zero

# As healthcheck.registry.MODES, which is imported only when a check runs; a test compares them.
MODES = ("gate", "periodic", "return", "prolog", "epilog", "suspect", "deep", "pair")


def add_parser(verbs: argparse._SubParsersAction[Any]) -> None:
    """Add our verbs to the command line."""
    _add_check(verbs)
    _add_watch(verbs)
    _add_burn_in(verbs)


def _add_check(verbs: argparse._SubParsersAction[Any]) -> None:
    parser = verbs.add_parser("check", help="is this node fit? exit 0 yes, 1 no")
    parser.add_argument("--when", choices=MODES, default="gate", help="which set of checks (gate)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line")
    form.add_argument("--nagios", action="store_true", help="one line, exit code 0, 1, 2 or 3")
    form.add_argument("--list", action="store_true", help="say what the checks are, make none")
    form.add_argument("--learn", action="store_true", help="print the profile of this good node")
    parser.add_argument("--result", action="store_true", help="end with a HEALTH_CHECK_RESULT line")
    parser.add_argument("--prometheus", metavar="FILE", type=Path, help="for node_exporter")
    parser.add_argument("--suspect", action="store_true",
                        help="ask all nodes of a job which of them is at fault")  # fmt: skip
    parser.add_argument("--job", metavar="ID", default=os.environ.get("SLURM_JOB_ID"),
                        help="with --suspect: whose nodes (this job's)")  # fmt: skip
    parser.add_argument("--nodes", metavar="LIST", help="with --suspect: these nodes, n[1-4]")
    parser.add_argument("--act", action="store_true", help="drain this node when hardware failed")
    parser.add_argument("--dry-run", action="store_true", help="with --act: say it, do not do it")
    parser.add_argument("--profile", metavar="NAME", help="what a fit node has (site: profile)")
    parser.add_argument(
        "--shared", metavar="PATH", action="append", default=[], type=Path,
        help="a folder that must be shared and writable; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--reference-time", metavar="UNIX", type=finite, help="the right time, to test the clock"
    )
    parser.add_argument("--since", metavar="UNIX", type=finite,
                        help="kernel lines before this time do not count")  # fmt: skip
    parser.add_argument("--node-root", metavar="DIR", type=Path, default=Path("/"),
                        help="this folder stands for / (for tests)")  # fmt: skip
    parser.set_defaults(func=_check, verb="check")


def _add_watch(verbs: argparse._SubParsersAction[Any]) -> None:
    parser = verbs.add_parser("watch", help="on the controller: replace and return drained nodes")
    parser.add_argument("--once", action="store_true", help="one round, then exit")
    parser.add_argument("--interval", metavar="S", type=above_zero, default=5.0, help="seconds (5)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    parser.add_argument("--log", metavar="FILE", type=Path, help="JSON lines (actions.jsonl)")
    parser.add_argument("--state", metavar="FILE", type=Path, help="where phases are kept")
    parser.set_defaults(func=_watch, verb="watch")


def _add_burn_in(verbs: argparse._SubParsersAction[Any]) -> None:
    parser = verbs.add_parser("burn-in", help="test nodes hard before jobs get them")
    parser.add_argument("--nodes", metavar="LIST", help="n[1-16]; default: all of the cluster")
    parser.add_argument("--rounds", metavar="N", type=count, default=3,
                        help="of pairs, with new partners each time (3)")  # fmt: skip
    parser.add_argument("--wait", metavar="S", type=from_zero, default=3600.0,
                        help="for jobs that still run on a node (3600)")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say which nodes, test none")
    parser.set_defaults(func=_burn_in, verb="burn-in")


def _burn_in(arguments: argparse.Namespace) -> int:
    from healthcheck.burn_in import main  # noqa: PLC0415  (see above)

    return main(arguments)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.suspect:
        from healthcheck.suspect_nodes import main as suspect  # noqa: PLC0415  (see above)

        return suspect(arguments)
    from healthcheck.check_node import main  # noqa: PLC0415  (see above)

    return main(arguments)


def _watch(arguments: argparse.Namespace) -> int:
    from healthcheck.watch import main  # noqa: PLC0415  (see above)

    return main(arguments)
