"""What the last health check of root found on this node, for who may know less or has less time.

A job's own user may not read the kernel's log and does not see what root sees; a prolog has no time
to ask Slurm how many nodes are drained. One small file on the node's own disk tells both. Only a
file that the folder's owner wrote counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from healthcheck.finding import Finding, read_finding

FRESH_S = 900.0
"""Older than this it says nothing about the node's present state; Slurm mostly asks every 300 s."""

RUN, PROLOG = "last.json", "prolog.json"


@dataclass(frozen=True)
class LastRun:
    """One run.

    Attributes:
        time: Unix time.
        boot_id: of the node, then.
        release: of muster, profile and site file: what judged.
        over_budget: the node was not drained because too many others are.
        findings: all of them.
        job: whose prolog or epilog it was; None: nobody's.
    """

    time: float
    boot_id: str
    release: str
    over_budget: bool
    findings: tuple[Finding, ...]
    job: Optional[str] = None


def release_of(*parts: object) -> str:
    """A short name for what judges: code, profile and site."""
    code = Path(__file__)
    archive = next((path for path in (code, *code.parents) if path.is_file()), code)
    with contextlib.suppress(OSError):
        status = archive.stat()
        parts = (*parts, status.st_size, status.st_mtime_ns)
    return f"{zlib.crc32(repr(parts).encode()):08x}"


def save(folder: Optional[Path], run: LastRun, name: str = RUN) -> None:
    """Replace the file; a full disk loses it, never half of it."""
    if folder is None:
        return
    text = json.dumps(
        {
            "time": run.time,
            "boot_id": run.boot_id,
            "release": run.release,
            "over_budget": run.over_budget,
            "job": run.job,
            "findings": [finding.as_json() for finding in run.findings],
        }
    )
    draft = folder / f".{name}.{os.getpid()}"
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.chmod(0o644)
        draft.replace(folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()


def load(folder: Optional[Path], name: str = RUN) -> Optional[LastRun]:
    """The last run; None: there is none, or it cannot be read."""
    if folder is None:
        return None
    path = folder / name
    try:
        if path.lstat().st_uid != folder.stat().st_uid:
            return None
        value = json.loads(path.read_text(encoding="utf-8"))
        return _run(value)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def forget(folder: Optional[Path], name: str) -> None:
    """Remove the file."""
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _run(value: dict[str, Any]) -> LastRun:
    findings = [read_finding(one) for one in value["findings"]]
    return LastRun(
        time=float(value["time"]),
        boot_id=str(value["boot_id"]),
        release=str(value["release"]),
        over_budget=bool(value["over_budget"]),
        findings=tuple(finding for finding in findings if finding),
        job=value.get("job"),
    )


def adopt(
    own: Sequence[Finding],
    last: Optional[LastRun],
    boot_id: str,
    now: float,
    since: Optional[float] = None,
) -> list[Finding]:
    """What we found and, where we could not look, what root found a short while ago.

    Args:
        own: our findings.
        last: root's last run.
        boot_id: of this node, now.
        now: Unix time.
        since: what the kernel said before this Unix time does not count.
    """
    if last is None or last.boot_id != boot_id or not 0 <= now - last.time < FRESH_S:
        return list(own)
    seen = {f.check for f in own if f.status in ("PASS", "WARN", "FAIL")}
    more = [
        finding
        for finding in last.findings
        if finding.status in ("WARN", "FAIL")
        and finding.check not in seen
        and not (since is not None and finding.time is not None and finding.time < since)
    ]
    return [*own, *more]


def enforced(bad: Sequence[Finding], last: Optional[LastRun], release: str) -> list[Finding]:
    """The failures for which a prolog may fail, which makes Slurm drain the node.

    A prolog cannot ask how many nodes are drained already. The periodic check can: what it could
    not drain for because too many are, a prolog does not drain for either; nor what a release,
    profile or site file says that no periodic check of this node has used yet.
    """
    if last is None:
        return list(bad)
    if last.release != release:
        return []
    known = {f.rule for f in last.findings if f.status == "FAIL"} if last.over_budget else set()
    return [finding for finding in bad if finding.rule not in known]
