"""What systemd says about the services that a site lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from healthcheck.facts import Facts

_LIMIT_S = 5.0
STATES = frozenset(
    ("active", "reloading", "inactive", "failed", "activating", "deactivating", "maintenance",
     "refreshing", "unknown")
)  # fmt: skip


def parse_states(text: str, count: int) -> Optional[list[str]]:
    """States in the order of the services; None: that is not what systemctl prints."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return lines if len(lines) == count and set(lines) <= STATES else None


def services(facts: Facts) -> Optional[dict[str, str]]:
    """State of every service of `services` in the site file; None: systemd does not answer."""
    names = list(dict.fromkeys(facts.site.services))
    # Its exit status is 3 as soon as one of them is not active.
    done = facts.env.run(["systemctl", "is-active", "--", *names], _LIMIT_S)
    states = None if done.timed_out else parse_states(done.out, len(names))
    return dict(zip(names, states)) if states is not None else None
