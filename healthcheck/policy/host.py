"""Rules about the host: clock, memory, CPUs, services, limits, and the kernel's own texts."""

from __future__ import annotations

from healthcheck.policy.rule import BACK, REBOOT, REPLACE, Rule

_PROFILE = "correct the profile or slurm.conf if that is what the node has, else " + REPLACE
_LOOK = "see 'journalctl -k' on the node"

RULES: dict[str, Rule] = {
    "clock": Rule("configuration", "none", "see 'chronyc tracking' on the node"),
    "clock_sync": Rule("configuration", "none", "start chronyd, see 'chronyc tracking'"),
    "memory_size": Rule("hardware", "replace", _PROFILE),
    "memory_size.slurm": Rule("configuration", "none", "correct RealMemory in slurm.conf"),
    "cpu_count": Rule("hardware", "replace", _PROFILE),
    "cpu_count.slurm": Rule("configuration", "none", "correct CPUs in slurm.conf"),
    "memory_errors": Rule("hardware", "replace", REPLACE),
    "memory_errors.corrected": Rule("hardware", "none", "watch it: a memory module gets worse"),
    "services": Rule("software", "none", "see 'systemctl status' on the node, " + BACK),
    "shm_size": Rule("configuration", "none", "mount /dev/shm with a larger size="),
    "shm_size.used": Rule("software", "none", "remove what old jobs left in /dev/shm"),
    "memlock": Rule(
        "configuration", "none", "LimitMEMLOCK=infinity for slurmd, PropagateResourceLimits=NONE"
    ),
    "kernel_memory": Rule("hardware", "replace", REPLACE),
    "kernel_memory.corrected": Rule("hardware", "none", "watch it: a memory module gets worse"),
    "kernel_memory.heat": Rule("hardware", "none", "look after the cooling of the node"),
    "kernel_stuck": Rule("software", "reboot", REBOOT),
    "kernel_stuck.slow": Rule("software", "none", _LOOK),
    "kernel_program": Rule("software", "none", "the program, not the node: see its log"),
}
