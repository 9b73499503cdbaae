"""Rules about the host: clock, memory, CPUs, services, limits."""

from __future__ import annotations

from healthcheck.policy.rule import Rule

RULES: dict[str, Rule] = {
    "clock": Rule("configuration", "none", "see 'chronyc tracking' on the node"),
}
