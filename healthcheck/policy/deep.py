"""Rules about burn-in: DCGM, and our own tests of GPUs, disks and the network."""

from __future__ import annotations

from healthcheck.policy.rule import REPLACE, RESET, Rule

_SEE = "run 'dcgmi diag -r 3' on the node; then " + REPLACE

BLAMED = Rule("network", "drain", "look at the network card, cable and port of {node}")
"""For a node whose pairs failed whoever its partner was; no check alone can say that."""

RULES: dict[str, Rule] = {
    "dcgm_diag": Rule("hardware", "drain", _SEE),
    "dcgm_diag.isolate": Rule("hardware", "replace", REPLACE),
    "dcgm_diag.reset": Rule("hardware", "reset", RESET),
    "dcgm_diag.config": Rule("configuration", "none", "set it as DCGM says"),
    "dcgm_diag.monitor": Rule("hardware", "none", "watch it"),
    "deep_matmul": Rule("hardware", "replace", REPLACE),
    "deep_matmul.split": Rule("hardware", "drain", _SEE),
    "deep_allreduce": Rule("hardware", "drain", _SEE),
    "deep_allreduce.slow": Rule("hardware", "drain", "see 'nvidia-smi topo -m' and NVLink errors"),
    "deep_disk": Rule("hardware", "replace", REPLACE),
    "deep_disk.slow": Rule("hardware", "drain", "look at the disk, 'nvme smart-log'"),
    "pair_allreduce": Rule("network", "none", "swap partners: a pair does not say who it was"),
    "pair_allreduce.slow": Rule("network", "none", "swap partners, look at cables"),
    "pair_tcp": Rule("network", "none", "swap partners: a pair does not say who it was"),
    "pair_tcp.slow": Rule("network", "none", "swap partners, look at cables and 'ethtool -S'"),
    "pair_rdma": Rule("network", "none", "swap partners, see 'ibstat' and 'ibdiagnet'"),
    "pair_rdma.slow": Rule("network", "none", "swap partners, look at cables and PCIe width"),
    "dcgm_health": Rule("hardware", "drain", _SEE),
    "dcgm_health.warning": Rule("hardware", "none", "watch it: 'dcgmi health -c'"),
}
