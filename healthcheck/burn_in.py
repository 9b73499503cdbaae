"""`muster burn-in`: test nodes hard before jobs get them, each alone and then in pairs.

In a maintenance reservation. The result is a node feature, HealthCheck:Passed, Failed or Skipped;
a node that failed is drained, or stays reserved where the budget does not allow another drain.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Optional, TypeVar

from healthcheck import drain, maintenance
from healthcheck.action_log import ActionLog, default_path
from healthcheck.deep import results
from healthcheck.deep.pairs import Pair, rounds
from healthcheck.deep.results import NodeResult
from healthcheck.finding import Finding
from healthcheck.maintenance import Reservation
from healthcheck.read.gpu import parse_gres
from healthcheck.registry import LIMIT_S
from healthcheck.suspect import ACTIONS, read_findings
from muster import slurm
from muster.errors import MusterError, UsageError
from muster.process import Completed, run
from muster.site import Site, load_site
from muster.slurm import Node

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 64
JOB = "muster_burn_in"


@dataclass(frozen=True)
class Bench:
    """The nodes under test, and how to run something on them."""

    nodes: Mapping[str, Node]
    site: Site
    reservation: Reservation
    wait_s: float  # for jobs that still run there

    def step(self, names: Sequence[str], when: str) -> Completed:
        """`muster check --when` MODE as one job on all these nodes, one task on each."""
        gpus = min(parse_gres(self.nodes[name].gres) for name in names)
        count = len(names)
        argv = [
            *("srun", f"--reservation={self.reservation.name}", "--exclusive", "--quiet"),
            *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
            *(f"--nodelist={','.join(names)}", f"--job-name={JOB}"),
            *([f"--gpus-per-node={gpus}"] if gpus else []),
            *("muster", "check", "--when", when, "--json"),
        ]
        return run(argv, LIMIT_S[when] + self.wait_s, env=slurm.bare_environment())

    def all(self, work: Callable[[T], R], items: Sequence[T]) -> dict[T, R]:
        """The results of work on all items at once; whoever interrupts it ends the jobs."""
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(items)))) as pool:
            try:
                return dict(zip(items, pool.map(work, items)))
            except BaseException:
                run(["scancel", f"--name={JOB}", f"--reservation={self.reservation.name}"], 10)
                raise


def main(arguments: argparse.Namespace) -> int:
    """Burn nodes in.

    Returns:
        0 when all passed, else 1.

    Raises:
        MusterError: no nodes, Slurm does not answer or refuses the reservation.
    """
    site, known = load_site(), slurm.show_nodes()
    names = slurm.hostnames(arguments.nodes) if arguments.nodes else list(known)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError("--nodes", f"Slurm knows no node {', '.join(unknown)}", "see 'sinfo -N'")
    nodes = {name: known[name] for name in names if not _unusable(known[name])}
    found = {name: NodeResult("Skipped", why=_unusable(known[name]) or "") for name in names}
    if arguments.dry_run:
        for name in names:
            _say(name, f"would be tested{_but(_unusable(known[name]))}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the clean-up
    if nodes:
        limit_s = arguments.wait + LIMIT_S["deep"] + arguments.rounds * LIMIT_S["pair"]
        with maintenance.reserved(list(nodes), limit_s) as reservation:
            bench = Bench(nodes, site, reservation, arguments.wait)
            found.update(_burn(bench, arguments.rounds))
    for name, result in found.items():
        _say(name, f"{result.word}{_but('; '.join(_reasons(result)))}")
    return 0 if all(result.word == "Passed" for result in found.values()) else 1


def _unusable(node: Node) -> Optional[str]:
    if node.lost or node.states & (drain.TRANSITIONAL - {"MAINT", "MAINTENANCE"}):
        return "its state is " + "+".join(sorted(node.states))
    return f"it is drained: {node.reason}" if "DRAIN" in node.states else None


def _burn(bench: Bench, count: int) -> dict[str, NodeResult]:
    """Test, mark and drain; what is not finished is marked as skipped."""
    found: dict[str, NodeResult] = {}
    try:
        _mark_all(dict.fromkeys(bench.nodes, "InProgress"))
        alone = results.alone(bench.all(partial(_alone, bench), list(bench.nodes)))
        fit = [name for name, result in alone.items() if result.word == "Passed"]
        found = results.in_pairs(alone, _pairs(bench, fit, count))
    finally:
        words = {name: found[name].word if name in found else "Skipped" for name in bench.nodes}
        _mark_all(words)
    for name, result in found.items():
        if result.word == "Failed":
            _take_out(name, result, bench)
    return found


def _alone(bench: Bench, name: str) -> Optional[list[Finding]]:
    return read_findings(bench.step([name], "deep").out)


def _pairs(bench: Bench, names: Sequence[str], count: int) -> dict[Pair, Optional[bool]]:
    tried: dict[Pair, Optional[bool]] = {}
    for pairs in rounds(names, count):
        done = bench.all(partial(_passed, bench), pairs)
        for (one, other), passed in done.items():
            word = {True: "passed", False: "failed", None: "was not tested"}[passed]
            _say(one, f"with {other}: {word}")
        tried.update(done)
    return tried


def _passed(bench: Bench, pair: Pair) -> Optional[bool]:
    """Whether both say so; None: nobody knows."""
    return results.passed(read_findings(bench.step(pair, "pair").out) or [])


def _take_out(name: str, result: NodeResult, bench: Bench) -> None:
    """Drain a node that failed; where that is not allowed it stays in the reservation."""
    worst = min(result.failed, key=lambda finding: ACTIONS.index(finding.action))
    log = ActionLog(default_path())
    try:
        nodes = slurm.show_nodes()
        # It is in maintenance because of us; apart from that it is as fit for a drain as others.
        states = nodes[name].states - {"MAINT", "MAINTENANCE", "RESERVED"}
        free = {**nodes, name: replace(nodes[name], states=states)}
        decision = drain.decide(worst, None, free, name, bench.site)
        if decision.kind == "drain":
            drain.update(name, decision.state, decision.why)
            log.write("drained", name, decision.why, check=worst.check, detail=worst.detail)
        refused = decision.why if decision.kind in ("refuse", "full") else None
    except MusterError as error:
        refused = str(error)
    if refused:
        bench.reservation.keep.append(name)
        log.write("refused", name, f"not drained: {refused}", check=worst.check)
        _say(name, f"stays in the reservation {bench.reservation.name}: {refused}")


def _mark_all(words: Mapping[str, maintenance.Result]) -> None:
    """Write the results down; a node that cannot be marked is said and does not end the rest."""
    for name, word in words.items():
        _mark(name, word)


def _mark(name: str, word: maintenance.Result) -> None:
    try:
        maintenance.mark(name, word)
    except (MusterError, KeyError) as error:
        _say(name, f"cannot be marked: {error}")


def _reasons(result: NodeResult) -> list[str]:
    if result.failed:
        return [f"{finding.check}: {finding.detail}" for finding in result.failed]
    return [result.why] if result.why else []


def _but(why: Optional[str]) -> str:
    return f": {why}" if why else ""


def _say(node: str, text: str) -> None:
    print(f"muster burn-in: {time.strftime('%H:%M:%S')} node {node}: {text}", flush=True)
