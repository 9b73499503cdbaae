"""Rules about the network between nodes: InfiniBand, EFA."""

from __future__ import annotations

from healthcheck.policy.rule import Rule

RULES: dict[str, Rule] = {}
