"""Rules about burn-in: DCGM, and our own tests of GPUs, disks and the network."""

from __future__ import annotations

from healthcheck.policy.rule import REPLACE, RESET, Rule

_SEE = "run 'dcgmi diag -r 3' on the node; then " + REPLACE

RULES: dict[str, Rule] = {
    "dcgm_diag": Rule("hardware", "drain", _SEE),
    "dcgm_diag.isolate": Rule("hardware", "replace", REPLACE),
    "dcgm_diag.reset": Rule("hardware", "reset", RESET),
    "dcgm_diag.config": Rule("configuration", "none", "set it as DCGM says"),
    "dcgm_diag.monitor": Rule("hardware", "none", "watch it"),
    "dcgm_health": Rule("hardware", "drain", _SEE),
    "dcgm_health.warning": Rule("hardware", "none", "watch it: 'dcgmi health -c'"),
}
