"""Rules about GPUs."""

from __future__ import annotations

from healthcheck.policy.rule import REBOOT, REBOOT_THEN_REPLACE, REPLACE, RESET, Rule

RULES: dict[str, Rule] = {
    "nvidia_smi": Rule("software", "reboot", REBOOT),
    "nvidia_smi.hung": Rule("hardware", "reboot", REBOOT),
    "nvidia_smi.hardware": Rule("hardware", "replace", REPLACE),
    "nvidia_smi.fell_off": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "nvidia_smi.missing": Rule(
        "software", "drain", "install the NVIDIA driver, or set profile: cpu in the site file"
    ),
    "gpu_lost": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "gpu_count": Rule("hardware", "replace", REPLACE),
    "gpu_count.driver": Rule("hardware", "reboot", REBOOT),
    "gpu_count.more": Rule("configuration", "none", "correct 'gpus' in the profile"),
    "gpu_ecc": Rule("hardware", "reset", RESET),
}
