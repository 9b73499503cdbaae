"""`muster check --suspect`: ask all nodes of a job at once, and say which one is at fault.

Each node gets a command of its own, so that a dead one costs nobody but itself, and whoever has not
answered within 55 seconds did not answer: the whole takes at most a minute. In a job of our own the
question is a job step beside the ranks; as root, or when the job has ended, it is the site's
`on_node_command`, which also sees the kernel's log.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

from healthcheck.finding import Finding
from healthcheck.suspect import Suspect, judge, read_findings
from muster import slurm
from muster.errors import UsageError
from muster.process import run
from muster.site import Site, load_site

LIMIT_S = 55.0
AT_ONCE = 64
BEFORE_JOB_S = 60.0  # what broke a job may have begun shortly before it

Reports = Mapping[str, Optional[Sequence[Finding]]]


def main(arguments: argparse.Namespace) -> int:
    """Print who is to blame.

    Returns:
        1 when a node is at fault, else 0.

    Raises:
        MusterError: no job and no nodes are named, Slurm does not answer, or no way to the nodes.
    """
    site = load_site()
    job = slurm.show_job(arguments.job) if arguments.job else None
    named = slurm.hostnames(arguments.nodes) if arguments.nodes else []
    nodes = named or (job.nodes if job else [])
    if not nodes:
        raise UsageError("--suspect", "no node to ask", "give --job ID, or --nodes n[1-4]")
    since = arguments.since
    started_at = slurm.unix_time(job.start_time) if job is not None else None
    if since is None and started_at is not None:
        since = started_at - BEFORE_JOB_S
    reports = ask(nodes, way_to(job, site), question(since))
    suspect = judge(reports)
    print("\n".join(as_json(reports, suspect) if arguments.json else human(reports, suspect)))
    return 1 if suspect.verdict == "hardware" else 0


def question(since: Optional[float]) -> list[str]:
    """What is run on each node."""
    words = ["muster", "check", "--when", "suspect", "--json"]
    return [*words, *(["--since", f"{since:.3f}"] if since is not None else [])]


def way_to(job: Optional[slurm.Job], site: Site) -> list[str]:
    """The words that run a command on a node; {node} is to be filled in.

    Raises:
        UsageError: there is none.
    """
    if job is not None and job.state == "RUNNING" and job.user_id == os.geteuid():
        return [
            *("srun", f"--jobid={job.job_id}", "--overlap", "--quiet", "--nodelist={node}"),
            *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1"),
        ]
    if site.on_node_command:
        return site.on_node_command
    raise UsageError(
        "--suspect", "this is no running job of yours, and the site file has no on_node_command",
        'on_node_command: [ssh, -o, BatchMode=yes, "{node}"]',
    )  # fmt: skip


def ask(nodes: Sequence[str], way: Sequence[str], words: Sequence[str]) -> Reports:
    """Findings by node; None: no answer in time."""
    ends = time.monotonic() + LIMIT_S
    environment = slurm.bare_environment()

    def one(node: str) -> Optional[list[Finding]]:
        argv = [*(word.replace("{node}", node) for word in way), *words]
        left_s = ends - time.monotonic()
        return read_findings(run(argv, left_s, env=environment).out) if left_s > 0 else None

    with ThreadPoolExecutor(min(AT_ONCE, len(nodes))) as pool:
        return dict(zip(nodes, pool.map(one, nodes)))


def human(reports: Reports, suspect: Suspect) -> list[str]:
    """Evidence, then one line that names the node and what it needs."""
    answered = sum(found is not None for found in reports.values())
    lines = [f"muster check: {answered} of {len(reports)} nodes answered"]
    lines += [f"muster check: evidence: {line}" for line in suspect.evidence]
    who = f"node {suspect.node}" if suspect.node else "no node"
    also = f"; also {', '.join(suspect.also)}" if suspect.also else ""
    said = f"{who}{also} ({suspect.verdict}, {suspect.action}): {suspect.why}"
    return [*lines, f"muster check: suspect: {said}"]


def as_json(reports: Reports, suspect: Suspect) -> list[str]:
    """One object per node, then the verdict."""
    lines = []
    for node, found in reports.items():
        failed = [f"{f.check}: {f.detail}" for f in found or () if f.status == "FAIL"]
        lines.append(json.dumps({"node": node, "answered": found is not None, "failed": failed}))
    return [*lines, json.dumps(suspect.as_json())]
