"""The reason with which muster drains a node: who did it, why, and what should be done.

`muster:gpu_count:hardware:replace shows 7 of 8 GPUs boot=3f2a91c0`. The first word is the owner:
nodes with any other reason belong to somebody else and are never touched. A person who wants
`muster watch` to replace a node writes such a reason by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from healthcheck import lazy
from healthcheck.finding import plain

LONGEST = 200
OWNER = "muster:"
_FORM = lazy.pattern(
    r"muster:(?P<check>[a-z0-9_.]+):(?P<class>[a-z]+):(?P<action>none|reset|reboot|drain|replace)"
    r"(?: (?P<rest>.*))?"
)
_BOOT = lazy.pattern(r"(?:^| )boot=([0-9a-f]{8})$")

# What Slurm 22.05 writes itself when a node is gone or came back without having been asked to.
_SLURM = ("Not responding", "Node unexpectedly rebooted")


@dataclass(frozen=True)
class Reason:
    """A reason of muster, taken apart."""

    check: str
    class_: str
    action: str
    detail: str = ""
    boot: Optional[str] = None


def write(reason: Reason) -> str:
    """The text for Slurm: ASCII, no quotes, at most 200 characters; the detail is cut to fit."""
    head = f"{OWNER}{reason.check}:{reason.class_}:{reason.action}"
    tail = f" boot={reason.boot}" if reason.boot else ""
    detail = plain(reason.detail, LONGEST - len(head) - len(tail) - 1)
    return f"{head} {detail}".rstrip() + tail


def read(text: str) -> Optional[Reason]:
    """The reason of muster that a text is; None: somebody else's, or none."""
    found = _FORM.fullmatch(text)
    if not found:
        return None
    rest = found["rest"] or ""
    boot = _BOOT.search(rest)
    return Reason(
        check=found["check"],
        class_=found["class"],
        action=found["action"],
        detail=rest[: boot.start()] if boot else rest,
        boot=boot[1] if boot else None,
    )


def is_slurms(text: str, user: Optional[str], slurm_users: frozenset[str]) -> bool:
    """Whether Slurm itself wrote this reason, or nobody wrote any.

    The author alone does not tell (root is often Slurm's user too), nor does the text alone, which
    a person could write.
    """
    if text in ("", "none"):
        return True
    return text in _SLURM and (user is None or user in slurm_users)
