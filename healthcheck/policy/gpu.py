"""Rules about GPUs."""

from __future__ import annotations

from healthcheck.policy.rule import BACK, REBOOT, REBOOT_THEN_REPLACE, REPLACE, RESET, Rule

_DRIVER = "install one driver version for all nodes, then reboot"
_FABRIC = "'systemctl restart nvidia-fabricmanager', else reboot it"

RULES: dict[str, Rule] = {
    # Does the driver answer, and how many GPUs are there?
    "nvidia_smi": Rule("software", "reboot", REBOOT),
    "nvidia_smi.hung": Rule("hardware", "reboot", REBOOT),
    "nvidia_smi.slow": Rule("configuration", "none", "turn persistence mode on"),
    "nvidia_smi.hardware": Rule("hardware", "replace", REPLACE),
    "nvidia_smi.fell_off": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "nvidia_smi.missing": Rule(
        "software", "drain", "install the NVIDIA driver, or set profile: cpu in the site file"
    ),
    "gpu_lost": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "gpu_count": Rule("hardware", "replace", REPLACE),
    "gpu_count.driver": Rule("hardware", "reboot", REBOOT),
    "gpu_count.more": Rule("configuration", "none", "correct 'gpus' in the profile"),
    "gpu_count.gres": Rule("configuration", "none", "correct Gres in slurm.conf and gres.conf"),
    "driver_match": Rule("software", "reboot", REBOOT),
    "driver_update": Rule("configuration", "none", _DRIVER),
    "gpu_versions": Rule("configuration", "none", _DRIVER),
    # Memory.
    "gpu_ecc": Rule("hardware", "reset", RESET),
    "gpu_ecc_mode": Rule("configuration", "none", "'nvidia-smi -e 1' on the node, then reboot it"),
    "gpu_sram": Rule("hardware", "replace", REPLACE),
    "gpu_row_remap": Rule("hardware", "reset", RESET),
    "gpu_row_remap.failed": Rule("hardware", "replace", REPLACE),
    "gpu_row_reserve": Rule("hardware", "replace", REPLACE),
    "gpu_pages": Rule("hardware", "reboot", REBOOT),
    "gpu_pages.many": Rule("hardware", "replace", REPLACE),
    # What the driver says about their state.
    "gpu_recovery.reset": Rule("hardware", "reset", RESET),
    "gpu_recovery.reboot": Rule("hardware", "reboot", REBOOT),
    "gpu_recovery.drain": Rule("hardware", "drain", "wait for its job to end, then reset the GPU"),
    "gpu_recovery": Rule("software", "none", "see 'nvidia-smi -q' on the node"),
    "gpu_persistence": Rule("configuration", "none", "enable the service nvidia-persistenced"),
    "gpu_mig": Rule("configuration", "none", "'nvidia-smi -mig 0' (or 1), then reset the GPU"),
    "gpu_fabric": Rule("software", "reboot", _FABRIC),
    "gpu_throttle": Rule("hardware", "none", "look at cooling and power of the node"),
    "gpu_throttle.long": Rule("hardware", "drain", "look at cooling and power of the node"),
    "gpu_temperature": Rule("hardware", "none", "look at the cooling of the node"),
    "gpu_temperature.idle": Rule("hardware", "drain", "look at the cooling of the node"),
    "gpu_strikes": Rule(
        "hardware", "replace", REPLACE + ", or delete the file of the GPU in strikes to forgive it"
    ),
    # The ways between them.
    "gpu_pci": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "nvswitch_count": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "gpu_pcie_link": Rule("hardware", "drain", "reseat or replace the GPU or its riser"),
    "gpu_pcie_errors": Rule("hardware", "drain", "reseat or replace the GPU or its riser"),
    "gpu_pcie_replays": Rule("hardware", "none", "reseat the GPU or its riser at the next chance"),
    "nvlink_links": Rule("hardware", "reset", RESET),
    "nvlink_errors": Rule("hardware", "drain", "run 'dcgmi diag -r 3' on the node"),
    # Around a job.
    "gpu_processes": Rule("software", "drain", "end the process, " + BACK),
    "gpu_memory_left": Rule("software", "reset", RESET),
    # AWS Trainium.
    "neuron_count": Rule("hardware", "replace", REPLACE),
    "neuron_ecc": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
}
