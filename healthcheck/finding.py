"""What a check says about a node, as data that people, srun and Slurm can carry.

A check yields `Result`s: status and detail. Class, action and fix come from the policy table alone
and make a `Finding` of it, so that no check decides what is done to a node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, cast, get_args

Status = Literal["PASS", "WARN", "FAIL", "SKIP", "UNKNOWN"]
"""SKIP: does not apply here. UNKNOWN: the probe failed; counts neither as passed nor as failed."""
Class = Literal["hardware", "software", "configuration", "storage", "network"]
Action = Literal["none", "reset", "reboot", "drain", "replace"]

LONGEST_DETAIL = 240
"""Characters; a finding as JSON stays below 900 bytes, which srun carries in one piece."""


@dataclass(frozen=True)
class Result:
    """What a check saw; `rule` names its row of the policy table, None: the check's own name."""

    status: Status
    detail: str
    rule: Optional[str] = None
    gpu: Optional[str] = None
    time: Optional[float] = None  # Unix time of the first kernel line behind it
    value: Optional[float] = None  # what was measured; its unit is in the detail
    checksum: Optional[str] = None  # of what was computed


@dataclass(frozen=True)
class Finding:
    """A result with what the policy says about it; `detail` continues 'node n3 ...'."""

    check: str
    status: Status
    class_: Class
    action: Action
    detail: str
    fix: str
    gpu: Optional[str] = None
    rule: str = ""  # the row of the policy table; empty: the check's own name
    time: Optional[float] = None  # Unix time of the first kernel line behind it
    value: Optional[float] = None  # what was measured; its unit is in the detail
    checksum: Optional[str] = None  # of what was computed

    def as_json(self) -> dict[str, object]:
        """The finding for `--json`."""
        return {
            "check": self.check,
            "status": self.status,
            "class": self.class_,
            "action": self.action,
            "detail": self.detail,
            "gpu": self.gpu,
            "rule": self.rule or self.check,
            "time": self.time,
            "value": self.value,
            "checksum": self.checksum,
        }


def read_finding(value: Mapping[str, Any]) -> Optional[Finding]:
    """The finding that an object of `as_json` was; None: it is none. Its fix is not carried."""
    check, status, class_, action = (value.get(k) for k in ("check", "status", "class", "action"))
    known = zip((status, class_, action), (Status, Class, Action))
    if not isinstance(check, str) or not all(word in get_args(words) for word, words in known):
        return None
    when, gpu = value.get("time"), value.get("gpu")
    return Finding(
        check=check,
        status=cast("Status", status),
        class_=cast("Class", class_),
        action=cast("Action", action),
        detail=plain(str(value.get("detail", ""))),
        fix="",
        gpu=gpu if isinstance(gpu, str) else None,
        rule=str(value.get("rule") or check),
        time=float(when) if isinstance(when, (int, float)) and not isinstance(when, bool) else None,
    )


def plain(text: str, longest: int = LONGEST_DETAIL) -> str:
    """Printable ASCII on one line without quotes and backslashes, cut at `longest` characters."""
    kept = re.sub(r"[^\x20-\x7e]+", " ", text).translate(str.maketrans("", "", "\"'`\\"))
    short = " ".join(kept.split())
    return short if len(short) <= longest else short[: longest - 3] + "..."


def unfit(findings: Sequence[Finding], when: str) -> list[Finding]:
    """The findings that make the node unfit.

    In a prolog or epilog a non-zero exit makes Slurm drain the node, so there only faults of the
    node itself count: a file server that is away must not drain every node that starts a job.
    """
    failed = [finding for finding in findings if finding.status == "FAIL"]
    if when in ("prolog", "epilog"):
        return [finding for finding in failed if finding.class_ in ("hardware", "software")]
    return failed
