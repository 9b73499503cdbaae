"""Break a training in every way on the list, and see that nothing is lost.

    ./run faults                                   every fault on every recipe: half an hour each
    ./run faults --recipe llama2_fsdp --fault kill_rank
    ./run faults --ci                              the rows that CI runs
    ./run faults --storm --seed 7 --minutes 30 --every 20 --recipe llama2_fsdp
    ./run faults --list                            the faults as tables of Markdown

Leaves runs/faults/faults.json and faults.html, which grow with every row, and beside them every
run. Exit code 0 only if every row came out as expected. A storm leaves storm.json and the report of
the run in runs/storm.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from muster.cluster import LocalCluster
from muster.errors import MusterError, UsageError, did_you_mean
from tests.faults import catalogue, fault, twin
from tests.faults.campaign import Campaign
from tests.faults.fault import Fault
from tests.faults.judge import Row
from tests.faults.storm import STORM_SHAPE, Storm
from tests.faults.twin import ROOT, Twin


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./run faults", description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", action="append", metavar="NAME", help="repeatable; default all")
    parser.add_argument("--fault", action="append", metavar="NAME", help="repeatable; default all")
    parser.add_argument("--ci", action="store_true", help="only the rows that CI runs")
    parser.add_argument("--clusters", type=int, default=2, help="side by side (%(default)s)")
    parser.add_argument("--out", type=Path, help="default runs/faults, or runs/storm")
    parser.add_argument("--list", action="store_true", help="print all faults and end")
    parser.add_argument("--storm", action="store_true", help="faults at random moments instead")
    parser.add_argument("--seed", type=int, default=1, help="of the storm (%(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the storm (%(default)s)")
    parser.add_argument("--steps", type=int, help="of the storm's run; default: for its minutes")
    parser.add_argument("--every", type=float, default=20.0, help="seconds a fault (%(default)s)")
    return parser.parse_args(argv)


def chosen(known: dict[str, object], names: list[str] | None, what: str) -> list[str]:
    """Names that were given, or all.

    Raises:
        UsageError: there is none of that name.
    """
    for name in names or ():
        if name not in known:
            fix = f"one of {', '.join(known)}.{did_you_mean(name, known)}"
            raise UsageError(f"--{what} {name}", "unknown", fix)
    return names or list(known)


def tell(row: Row) -> None:
    """One line a row, and one for every problem."""
    back = "" if row.recover_s is None else f", back after {row.recover_s:.1f} s"
    came = ": ".join(filter(None, (row.action, row.cause))) or "went on"
    mark = "ok " if row.good else "BAD"
    print(f"{mark} {row.recipe} {row.area}/{row.fault}: {row.end}, {came}{back}", flush=True)
    for problem in row.problems:
        print(f"      {problem}", flush=True)


def campaign(options: argparse.Namespace, twins: list[Twin], faults: list[Fault]) -> int:
    """Every fault on every recipe; returns the exit code."""
    out = (options.out or ROOT / "runs" / "faults").absolute()
    wanted = [one for one in faults if not options.ci or one.ci]
    rows = Campaign(out, twins, wanted, options.clusters).run(tell)
    good = sum(row.good for row in rows)
    print(f"\n{good} of {len(rows)} as expected: {out / 'faults.html'}")
    return 0 if good == len(rows) else 1


def storms(options: argparse.Namespace, twins: list[Twin], faults: list[Fault]) -> int:
    """One storm over each recipe; returns the exit code."""
    bad = 0
    for one in twins:
        out = (options.out or ROOT / "runs" / "storm").absolute() / one.name
        cluster = LocalCluster(f"storm{os.getpid()}", STORM_SHAPE)
        cluster.up(owner_pid=os.getpid())
        wild = [fault for fault in faults if fault.storm]
        try:
            weather = (options.seed, options.minutes, options.every)
            storm = Storm(cluster, one, wild, out, *weather, steps=options.steps or 0)
            result = storm.rage()
        finally:
            cluster.down()
        bad += bool(result["problems"])
        print(
            f"\n{one.name}: {result['struck']} faults in {result['raged_s']:.0f} s, "
            f"{result['attempts']} attempts, "
            f"{result['lost_steps']} training steps lost, ETTR {result['ettr']:.1%}, "
            f"{'; '.join(result['problems']) or 'losses, samples and weights equal'}: {out}"
        )
    return 1 if bad else 0


def main(argv: list[str]) -> int:
    """Run; returns the exit code."""
    options = parse(argv)
    faults, twins = fault.discover(), twin.discover()
    if options.list:
        print(catalogue.tables(faults))
        return 0
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        recipes = [twins[name] for name in chosen(dict(twins), options.recipe, "recipe")]
        wanted = [faults[name] for name in chosen(dict(faults), options.fault, "fault")]
        return (storms if options.storm else campaign)(options, recipes, wanted)
    except MusterError as error:
        print(f"faults: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
