"""`muster check`: is this node fit?

Runs every few seconds on every node as HealthCheckProgram, so it starts fast, ends in time whatever
hangs, and never blames a node for a fault of ours.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from healthcheck import gpu_names, last_run, output
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding, unfit
from healthcheck.last_run import PROLOG, LastRun
from healthcheck.one_checker import one_checker
from healthcheck.profile import load_profile
from healthcheck.read.gpu import smi, without_gpus
from healthcheck.registry import LIMIT_S, discover, run_checks
from healthcheck.state_folder import state_folder
from muster.site import load_site


def main(arguments: argparse.Namespace) -> int:
    """Run the checks of one mode.

    Returns:
        0 fit (passed, warned, skipped, unknown), 1 unfit; with --nagios 0, 1, 2 or 3.

    Raises:
        ConfigError: the site file or the profile is wrong.
    """
    if arguments.list:
        return _list()
    site, state, when = load_site(), state_folder(), arguments.when
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    env = Env(arguments.node_root, LIMIT_S[when], state)
    facts = Facts(
        env,
        load_profile(arguments.profile or site.profile, env),
        site,
        when=when,
        node=node,
        shared=arguments.shared,
        reference_time=arguments.reference_time,
        since=arguments.since,
    )
    if arguments.learn:
        return _learn(facts)
    with one_checker(state if when in _WAIT_S else None, _WAIT_S.get(when, 0.0)) as mine:
        if not mine and when == "periodic":
            print(f"muster check: another check of node {node} runs; nothing is done")
            return 0
        return _check(arguments, facts, state, mine=mine)


_AROUND_A_JOB = ("prolog", "epilog")
_KNOWS_LESS = ("gate", "suspect")  # run as the job's user
_WAIT_S = {"periodic": 0.0, "prolog": 2.0, "epilog": 10.0}  # for another check of this node
_YOUNG_S = 60.0


def _check(
    arguments: argparse.Namespace, facts: Facts, state: Optional[Path], *, mine: bool
) -> int:
    boot_id = facts.env.read("/proc/sys/kernel/random/boot_id") or ""
    found = run_checks(discover(), facts) if mine else _just_found(state, boot_id)
    run = LastRun(
        time=time.time(),
        boot_id=boot_id,
        release=last_run.release_of(facts.profile, facts.site),
        over_budget=False,
        findings=tuple(_with_gpu_names(found, facts, state) if mine else found),
        job=os.environ.get("SLURM_JOB_ID"),
    )
    findings, bad = _judge(run, arguments, state)
    code = _print(arguments, output.Report(facts.node, boot_id, arguments.when, findings, bad))
    if arguments.act:
        run = _act(run, facts, state, dry_run=arguments.dry_run)
    if arguments.when == "periodic":
        last_run.save(state, run)
    if arguments.when in _AROUND_A_JOB and bad:
        last_run.save(state, replace(run, findings=tuple(bad)), PROLOG)
    return code


def _just_found(state: Optional[Path], boot_id: str) -> list[Finding]:
    """What the check that runs beside us found a moment ago; nothing if it is longer ago."""
    last = last_run.load(state)
    young = last is not None and 0 <= time.time() - last.time < _YOUNG_S
    return list(last.findings) if last and young and last.boot_id == boot_id else []


def _list() -> int:
    from healthcheck.catalogue import lines  # noqa: PLC0415  (seldom needed)

    print("\n".join(lines()))
    return 0


def _learn(facts: Facts) -> int:
    """Print a profile; a node that fails a check is no example."""
    from healthcheck.learn import learn  # noqa: PLC0415  (seldom needed)

    findings = run_checks(discover(), facts)
    bad = [finding for finding in findings if finding.status == "FAIL"]
    if bad:
        report = output.Report(facts.node, "", facts.when, bad, bad)
        print("\n".join(output.human(report)), file=sys.stderr)
        print("muster check: nothing is learnt. Fix: take a fit node", file=sys.stderr)
        return 1
    print("\n".join(learn(facts)))
    return 0


def _judge(
    run: LastRun, arguments: argparse.Namespace, state: Optional[Path]
) -> tuple[list[Finding], list[Finding]]:
    """All findings, and those that make the node unfit, with what root's last run knows."""
    findings, when = list(run.findings), arguments.when
    if when in _KNOWS_LESS:
        last = last_run.load(state)
        findings = last_run.adopt(findings, last, run.boot_id, run.time, arguments.since)
    bad = unfit(findings, when)
    if when in _AROUND_A_JOB and bad:
        allowed = last_run.enforced(bad, last_run.load(state), run.release)
        for finding in [one for one in bad if one not in allowed]:
            why = "the periodic check has not drained for it, or has not used this release yet"
            print(f"muster check: {finding.check} stops no job: {why}", file=sys.stderr)
        bad = allowed
    return findings, bad


def _with_gpu_names(
    findings: Sequence[Finding], facts: Facts, state: Optional[Path]
) -> list[Finding]:
    """Serial numbers in the place of PCI addresses, also of GPUs that do not answer any more."""
    if without_gpus(facts):
        return list(findings)
    shown = [(gpu.bus, gpu.name) for gpu in facts.once(smi).gpus]
    names = gpu_names.remember(gpu_names.load(state), shown)
    if facts.when == "periodic":
        gpu_names.save(state, names)
    return gpu_names.named(findings, names)


def _print(arguments: argparse.Namespace, report: output.Report) -> int:
    code = 1 if report.unfit else 0
    if arguments.prometheus:
        from healthcheck import prometheus  # noqa: PLC0415  (rarely needed)

        prometheus.write(arguments.prometheus, report, time.time())
    if arguments.json:
        lines = output.as_json(report)
    elif arguments.nagios:
        line, code = output.nagios(report)
        lines = [line]
    else:
        lines = output.human(report)
    if arguments.result:
        lines = [*lines, output.result(report)]
    print("\n".join(lines), flush=True)
    return code


def _act(run: LastRun, facts: Facts, state: Optional[Path], *, dry_run: bool) -> LastRun:
    """Drain this node if it must be; the run, with whether the budget forbade it."""
    from healthcheck.act import Here, act  # noqa: PLC0415  (most runs find nothing)
    from healthcheck.action_log import ActionLog, default_path  # noqa: PLC0415

    log = ActionLog(default_path())
    here = Here(facts.node, run.boot_id, facts.site, state, log, run.time, dry_run)
    acted = act(run.findings, here)
    if acted.said:
        print(f"muster check: {acted.said}", file=sys.stderr)
    return replace(run, over_budget=acted.over_budget)
