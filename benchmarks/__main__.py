"""`python -m benchmarks recovery|overhead|seal|health`: see the package."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import health, overhead, recovery, seal

ROOT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    """One line, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="nox -s bench --", description=__doc__)
    parser.add_argument("what", choices=("recovery", "overhead", "seal", "health"))
    parser.add_argument("--rounds", type=int, default=3, help="samples of each (3)")
    parser.add_argument("--only", default="", metavar="WORD", help="ways whose name holds it")
    parser.add_argument("--fault", default="", metavar="WORD", help="faults whose name holds it")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training, for overhead (3)")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of a checkpoint (1)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench")
    return parser.parse_args(argv)


def main() -> int:
    """Measure, print, leave a file; exit code 1 when a promise was not kept."""
    arguments = parse()
    work = arguments.out.absolute() / "work"
    if arguments.what == "recovery":
        found = recovery.measure(work, arguments.rounds, arguments.only, arguments.fault, say)
    elif arguments.what == "overhead":
        found = overhead.measure(work, arguments.rounds, arguments.minutes, say)
    elif arguments.what == "health":
        found = health.measure(work, arguments.rounds, say)
    else:
        found = seal.measure(work, arguments.rounds, arguments.gigabytes, say)
    load, cores = os.getloadavg()[0], os.cpu_count()
    found["machine"] = {"cores": cores, "load": load, "python": platform.python_version()}
    path = arguments.out.absolute() / f"{arguments.what}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{found['text']}\n\n{path} ({cores} cores, load {load:.1f} at the end)")
    return 0 if all(row["met"] is not False for row in found["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
