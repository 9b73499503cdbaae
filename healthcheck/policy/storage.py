"""Rules about disks and file systems.

Class storage: the file server, which all nodes share. Class hardware: a disk of this node.
"""

from __future__ import annotations

from healthcheck.policy.rule import REBOOT_THEN_REPLACE, REPLACE, Rule

_SERVER = "look at the mount and its file server"
_CLEAN = "delete old files there"

RULES: dict[str, Rule] = {
    "scratch_space": Rule(
        "software",
        "drain",
        "delete old files there, or name another disk as scratch_path in the site file",
    ),
    "scratch_space.missing": Rule("configuration", "none", "correct scratch_path in the site file"),
    "shared_writable": Rule("storage", "none", _SERVER),
    "shared_writable.denied": Rule("configuration", "none", "choose a folder you may write to"),
    "disk_space": Rule("software", "drain", _CLEAN),
    "disk_space.hung": Rule("storage", "none", "look at the mount that hangs"),
    "disk_inodes": Rule("software", "drain", _CLEAN),
    "mounts_writable": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "mounts_present": Rule("storage", "none", "mount it, or correct 'mounts' in the site file"),
    "mounts_alive": Rule("storage", "none", _SERVER),
    "nvme_count": Rule("hardware", "replace", REPLACE),
    "nvme_count.young": Rule("software", "none", "wait until the node has booted"),
    "nvme_count.more": Rule("configuration", "none", "correct 'nvme_disks' in the profile"),
    "nvme_state": Rule("hardware", "replace", REPLACE),
    "nvme_state.reset": Rule("hardware", "none", "watch it"),
    "nvme_smart": Rule("hardware", "replace", REPLACE),
    "nvme_smart.wear": Rule("hardware", "none", "plan to replace the disk"),
    "disk_array": Rule("hardware", "replace", REPLACE),
    "kernel_nvme": Rule("hardware", "replace", REPLACE),
    "kernel_nvme.slow": Rule("hardware", "none", "watch it"),
    "kernel_nvme.volume": Rule("storage", "none", "look at the volume in the cloud's console"),
    "kernel_filesystem": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "kernel_mount": Rule("storage", "none", _SERVER),
}
