"""`muster check`: is this node fit?

Runs every few seconds on every node as HealthCheckProgram, so it starts fast, ends in time whatever
hangs, and never blames a node for a fault of ours.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from healthcheck import output
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding, unfit
from healthcheck.profile import load_profile
from healthcheck.registry import LIMIT_S, discover, run_checks
from healthcheck.state_folder import state_folder
from muster.site import Site, load_site


def main(arguments: argparse.Namespace) -> int:
    """Run the checks of one mode.

    Returns:
        0 fit (passed, warned, skipped, unknown), 1 unfit; with --nagios 0, 1, 2 or 3.

    Raises:
        ConfigError: the site file or the profile is wrong.
    """
    if arguments.list:
        return _list()
    site = load_site()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    env = Env(arguments.node_root, LIMIT_S[arguments.when], state_folder())
    facts = Facts(
        env,
        load_profile(arguments.profile or site.profile, env),
        site,
        when=arguments.when,
        node=node,
        shared=arguments.shared,
        reference_time=arguments.reference_time,
        since=arguments.since,
    )
    if arguments.learn:
        return _learn(facts)
    findings = run_checks(discover(), facts)
    boot_id = env.read("/proc/sys/kernel/random/boot_id") or ""
    bad = unfit(findings, arguments.when)
    code = _print(arguments, findings, node, boot_id, bad)
    if arguments.act:
        _act(findings, boot_id, node, site, dry_run=arguments.dry_run)
    return code


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
        print("\n".join(output.human(bad, facts.node, bad)), file=sys.stderr)
        print("muster check: nothing is learnt. Fix: take a fit node", file=sys.stderr)
        return 1
    print("\n".join(learn(facts)))
    return 0


def _print(
    arguments: argparse.Namespace,
    findings: Sequence[Finding],
    node: str,
    boot_id: str,
    bad: Sequence[Finding],
) -> int:
    code = 1 if bad else 0
    if arguments.json:
        lines = output.as_json(findings, node, boot_id, bad)
    elif arguments.nagios:
        line, code = output.nagios(findings, node, bad)
        lines = [line]
    else:
        lines = output.human(findings, node, bad)
    print("\n".join(lines), flush=True)
    return code


def _act(
    findings: Sequence[Finding], boot_id: str, node: str, site: Site, *, dry_run: bool
) -> None:
    """Drain for the worst failure of the hardware; anything else only warns."""
    from healthcheck.action_log import ActionLog, default_path  # noqa: PLC0415  (rarely needed)
    from healthcheck.drain import act  # noqa: PLC0415

    order = ("replace", "reboot", "reset", "drain", "none")
    broken = [f for f in findings if f.status == "FAIL" and f.class_ == "hardware"]
    if not broken:
        return
    worst = min(broken, key=lambda f: order.index(f.action))
    said = act(
        worst, boot_id[:8] or None, node, site.max_unfit_fraction,
        ActionLog(default_path()), dry_run=dry_run,
    )  # fmt: skip
    if said:
        print(f"muster check: {said}", file=sys.stderr)
