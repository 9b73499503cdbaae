"""`muster check --act`: from what was found to what is done about this node.

It reads the strikes against the GPU, drains or explains why not, and writes the strike down. A node
that Slurm drained because our prolog or epilog failed gets the reason that the prolog found:
`Prolog error` says nothing, and `muster watch` acts on reasons of muster only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from healthcheck import drain, last_run, strikes
from healthcheck.action_log import ActionLog
from healthcheck.finding import Finding, unfit
from healthcheck.last_run import PROLOG, LastRun
from healthcheck.strikes import Strike, StrikeBook
from healthcheck.suspect import ACTIONS
from muster import slurm
from muster.errors import MusterError
from muster.site import Site

SLURMS_REASONS = frozenset({"Prolog error", "Epilog error"})


@dataclass(frozen=True)
class Here:
    """This node, as far as acting on it is concerned."""

    node: str
    boot_id: str
    site: Site
    state: Optional[Path]
    log: ActionLog
    now: float
    dry_run: bool

    @property
    def boot(self) -> str:
        """What a reason carries of the boot id."""
        return self.boot_id[:8]


@dataclass(frozen=True)
class Acted:
    """A line for people, if there is something to say, and whether the budget forbade it."""

    said: Optional[str] = None
    over_budget: bool = False


def drains(finding: Finding) -> bool:
    """Whether a failure takes the node out of service: its own hardware, or its own port."""
    network = finding.class_ == "network" and finding.action != "none"
    return finding.status == "FAIL" and (finding.class_ == "hardware" or network)


def act(findings: Sequence[Finding], here: Here) -> Acted:
    """Drain for the worst failure; or say why a prolog failed; or nothing."""
    said = _explain_prolog(here)
    if said:
        return Acted(said)
    broken = [finding for finding in findings if drains(finding)]
    if broken:
        worst = min(broken, key=lambda finding: ACTIONS.index(finding.action))
        return _drain(worst, here)
    stops_jobs = unfit(findings, "prolog")
    return Acted(None, bool(stops_jobs) and _over_budget(stops_jobs[0], here))


def _drain(finding: Finding, here: Here) -> Acted:
    """Drain for this finding, escalated by the strikes before; one more strike when it is done."""
    book = _book(here)
    name = strikes.name_of(finding, here.node)
    before = book.read(name)
    finding = strikes.escalate(finding, before, here.boot, here.now)
    outcome = drain.act(
        finding, here.boot or None, here.node, here.site, here.log, dry_run=here.dry_run
    )
    if outcome.kind == "drained":
        _strike(finding, here)
    return Acted(outcome.said, outcome.kind == "full")


def _strike(finding: Finding, here: Here) -> None:
    rule = finding.rule or finding.check
    strike = Strike(here.now, here.boot, here.node, rule, finding.action)
    book, name = _book(here), strikes.name_of(finding, here.node)
    book.write(name, strikes.added(book.read(name), strike))


def _book(here: Here) -> StrikeBook:
    local = here.state / strikes.LOCAL if here.state else None
    return StrikeBook(local, here.site.strikes_path, here.state)


def _over_budget(finding: Finding, here: Here) -> bool:
    """Whether a node that is not drained now could not be, because too many are."""
    try:
        nodes = slurm.show_nodes()
    except MusterError:
        return False
    return drain.decide(finding, here.boot, nodes, here.node, here.site).kind == "full"


def _explain_prolog(here: Here) -> Optional[str]:
    """Put our reason in the place of Slurm's, where our prolog failed in this boot."""
    marker = last_run.load(here.state, PROLOG)
    if marker is None or not marker.findings:
        return None
    if marker.boot_id != here.boot_id:
        last_run.forget(here.state, PROLOG)
        return None
    slurms = _drained_by_slurm(here.node)
    if slurms is None:
        return None
    finding = _for_prolog(marker, here)
    state, text = drain.wording(finding, here.boot or None, here.site)
    if here.dry_run:
        return f"node {here.node}: '{slurms}' would become: {text}"
    try:
        drain.update(here.node, state, text)
    except MusterError as error:
        return f"node {here.node}: '{slurms}' stays: {error}"
    here.log.write("explained", here.node, text, instead_of=slurms, job=marker.job)
    last_run.forget(here.state, PROLOG)
    _strike(finding, here)
    return f"node {here.node}: '{slurms}' is now: {text}"


def _drained_by_slurm(name: str) -> Optional[str]:
    """Slurm's reason, if it drained the node for a prolog or epilog."""
    try:
        node = slurm.show_nodes([name])[name]
    except (MusterError, KeyError):
        return None
    return node.reason if node.reason in SLURMS_REASONS and "DRAIN" in node.states else None


def _for_prolog(marker: LastRun, here: Here) -> Finding:
    worst = min(marker.findings, key=lambda finding: ACTIONS.index(finding.action))
    before = _book(here).read(strikes.name_of(worst, here.node))
    why = f"{worst.detail}, job={marker.job}" if marker.job else worst.detail
    return strikes.escalate(replace(worst, detail=why), before, here.boot, here.now)
