"""The facts of one cluster, in one file that no recipe contains.

/etc/muster/site.yaml (or $MUSTER_SITE) says what recipes must not know: how many ranks a node
carries, how a node is replaced, how long silence may last. Every key has a default, so a cluster
without the file works too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from muster.config import build, read_yaml
from muster.errors import ConfigError, did_you_mean

DEFAULT_PATH = Path("/etc/muster/site.yaml")
_SHORTEST_LEASE_S = 3.5  # below twice what guards take for a sign of life they would never act


PAGE_KINDS = (
    *("stopped", "storage", "set_aside", "rollback"),
    *("requeue", "takeover", "swap", "retry", "done"),
)
"""What a person can be told about; the first four are, unless the site says otherwise."""


@dataclass(frozen=True)
class Notify:
    """Whom `muster run` tells, and how. Secrets stand in files of their own."""

    webhook_file: Optional[Path] = None  # its first line is a URL that takes JSON by POST
    email_to: list[str] = field(default_factory=list)
    email_from: Optional[str] = None  # None: muster@<host>
    smtp: Optional[str] = None  # host:port of a relay; None: `sendmail`
    sendmail: list[str] = field(default_factory=lambda: ["/usr/sbin/sendmail", "-i", "-t"])
    command: list[str] = field(default_factory=list)  # gets the page as JSON on standard input
    pages: list[str] = field(default_factory=lambda: list(PAGE_KINDS[:4]))
    max_per_hour: int = 12  # of one run; a stop is always told
    beat_file: Optional[Path] = None  # its first line is a URL that pages when it hears nothing
    beat_s: float = 60.0
    timeout_s: float = 10.0  # of one try


@dataclass(frozen=True)
class Archive:
    """Where runs may copy checkpoints to. Credentials: the client library finds them itself."""

    url: Optional[str] = None  # s3://bucket/path
    endpoint: Optional[str] = None  # of a server that is not Amazon's: http://host:port


@dataclass(frozen=True)
class Site:
    """One cluster's facts; durations in seconds, fractions from 0 to 1."""

    ranks_per_node: Optional[int] = None  # None: one per GPU that Slurm gave, else 1
    profile: str = "auto"  # what a fit node has: healthcheck/profiles/
    gate_timeout_s: float = 60.0  # longest wait for all nodes to pass the gate
    lost_after_s: float = 10.0  # silence of a node before it counts as lost
    lease_s: float = 15.0  # silence of the supervisor before the guards act
    requeue_wait_s: float = 60.0  # wait for the end that a requeue brings
    submit_successor: bool = False  # a job that may not be requeued is followed by another
    scratch_path: Path = Path("/tmp")  # noqa: S108  (a site names its local disk here)
    scratch_min_free_bytes: int = 1 << 30
    dcgm_level: int = 3  # of `dcgmi diag` during burn-in, 1 to 4
    deep_python: list[str] = field(default_factory=lambda: ["python3"])  # has torch, for burn-in
    deep_s: float = 60.0  # of products of matrices
    deep_pair_s: float = 300.0  # longest all-reduce of two nodes
    deep_tcp_s: float = 5.0  # of TCP between two nodes, in each direction
    deep_disk_mib: int = 4096  # written to scratch_path
    disk_paths: list[str] = field(default_factory=lambda: ["/", "/tmp", "/var"])  # noqa: S108
    mounts: list[str] = field(default_factory=list)  # must be mounted on every node
    services: list[str] = field(default_factory=list)  # must be active on every node
    shared_paths: list[str] = field(default_factory=list)  # must be writable on every node
    max_unfit_fraction: float = 0.1  # of a partition's nodes; never less than one node
    replace_command: list[str] = field(default_factory=list)  # "{node}" is filled in
    reboot_command: list[str] = field(default_factory=list)
    verify_command: list[str] = field(default_factory=list)
    replace_timeout_s: float = 3600.0
    strikes_path: Optional[Path] = None  # shared folder: strikes follow a GPU to another node
    verify_pause_s: float = 10.0  # between the three verifications of a node
    shared_cause_s: float = 300.0  # three nodes that fail alike within it share a cause
    stranded_after_s: float = 300.0  # a job whose batch host is lost and that nobody brings back
    job_cures_per_day: int = 3  # releases and requeues of one job by the watch
    gres_recounts_per_day: int = 12  # scontrol reconfigure, when idle nodes' GPUs count as used
    hyperpod_repairs: bool = False  # HyperPod's own agent reboots and replaces nodes
    on_node_command: list[str] = field(default_factory=list)  # runs words on a node, as root
    notify: Notify = field(default_factory=Notify)
    archive: Archive = field(default_factory=Archive)


def load_site(path: Optional[Path] = None) -> Site:
    """The site file that is named, else $MUSTER_SITE, else /etc/muster/site.yaml, else defaults.

    Raises:
        ConfigError: a named file is missing, or a key or value is wrong.
    """
    named = path or (Path(os.environ["MUSTER_SITE"]) if os.environ.get("MUSTER_SITE") else None)
    if named is None and not DEFAULT_PATH.exists():
        return Site()
    source = named or DEFAULT_PATH
    site = build(Site, read_yaml(source), str(source))
    if not 0 <= site.max_unfit_fraction <= 1:
        raise ConfigError(
            f"{source}: max_unfit_fraction", f"{site.max_unfit_fraction} is not from 0 to 1", "0.1"
        )
    waits = ("gate_timeout_s", "lost_after_s", "lease_s", "requeue_wait_s", "stranded_after_s")
    for name in waits:
        if not getattr(site, name) > 0:  # NaN is not either
            raise ConfigError(f"{source}: {name}", "must be above 0", f"{name}: 10")
    if site.lease_s < _SHORTEST_LEASE_S:
        what = (
            f"{site.lease_s:g} is below {_SHORTEST_LEASE_S:g}, the supervisor writes every second"
        )
        raise ConfigError(f"{source}: lease_s", what, "lease_s: 15")
    for name in ("job_cures_per_day", "gres_recounts_per_day"):
        if getattr(site, name) < 0:
            raise ConfigError(f"{source}: {name}", "is below 0", f"{name}: 3")
    if site.ranks_per_node is not None and site.ranks_per_node < 1:
        raise ConfigError(f"{source}: ranks_per_node", "is below 1", "leave it out or give 1 to 16")
    _check_notify(site.notify, f"{source}: notify")
    return site


def _check_notify(notify: Notify, where: str) -> None:
    for kind in notify.pages:
        if kind not in PAGE_KINDS:
            hint = did_you_mean(kind, PAGE_KINDS)
            fix = f"use some of {', '.join(PAGE_KINDS)}"
            raise ConfigError(f"{where}.pages", f"'{kind}' is unknown.{hint}", fix)
    for name in ("beat_s", "timeout_s", "max_per_hour"):
        if not getattr(notify, name) > 0:
            raise ConfigError(f"{where}.{name}", "must be above 0", "leave it out")
    port = notify.smtp.partition(":")[2] if notify.smtp else ""
    if notify.smtp is not None and not (notify.smtp and (port or "25").isdigit()):
        raise ConfigError(f"{where}.smtp", f"'{notify.smtp}' is no host:port", "smtp: relay:25")
    if notify.email_to and notify.smtp is None and not notify.sendmail:
        raise ConfigError(f"{where}.email_to", "no way to send", "give smtp or sendmail")
