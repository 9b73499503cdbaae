"""Disks and mounts of a fit node: eight local disks in an array, a system volume, a file server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.harness.fake_tools.node import Answer, FakeNode

NVME = "/sys/class/nvme"
LOCAL, VOLUME = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"
SHARED = "/fsx"
GIB = 2**30
MOUNTS = """\
22 27 0:21 / /proc rw,nosuid,nodev,noexec shared:12 - proc proc rw
25 24 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=1056964608k
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,discard,errors=remount-ro
40 27 7:0 / /snap/core22/1621 ro,nodev,relatime shared:30 - squashfs /dev/loop0 ro,errors=continue
44 27 9:0 / /scratch\\040fast rw,noatime shared:40 - xfs /dev/md0 rw,attr2,inode64
45 27 9:0 /ro /opt/ro ro,noatime shared:41 - xfs /dev/md0 rw,attr2,inode64
50 27 0:50 / /fsx rw,flock,lazystatfs shared:50 - lustre 10.0.3.4@tcp:/fsx rw,flock
"""
MDSTAT = """\
Personalities : [raid0] [raid1]
md0 : active raid1 nvme1n1[0] nvme2n1[1]
      3710825472 blocks super 1.2 [2/2] [UU]
      bitmap: 0/28 pages [0KB], 65536KB chunk

unused devices: <none>
"""


def add(node: FakeNode) -> None:
    """What /sys, /proc and `nvme` say of them."""
    names = [f"nvme{index}" for index in range(9)]
    for name in names:
        node.files[f"{NVME}/{name}/model"] = VOLUME if name == "nvme0" else LOCAL
        node.files[f"{NVME}/{name}/state"] = "live"
        node.files[f"{NVME}/{name}/transport"] = "pcie"
    node.files["/proc/mdstat"] = MDSTAT
    node.files["/proc/self/mountinfo"] = MOUNTS
    node.parts["smart"] = {name: smart() for name in names}
    node.tools["nvme"] = lambda words: _nvme(node, words)
    large = volume(800 * GIB, 600 * GIB)
    node.volumes = {"/": large, "/tmp": large, "/var": large, SHARED: volume(10**15, 10**14)}
    node.volumes["/dev/shm"] = volume(1008 * GIB, 1000 * GIB)
    node.site = replace(node.site, mounts=[SHARED])
    node.profile = replace(node.profile, nvme_disks=8)


def volume(size: int, free: int, inodes: int = 52_428_800, free_inodes: int = 52_000_000) -> Any:
    """A file system as healthcheck/folders.py describes it."""
    return {
        "size_bytes": size, "free_bytes": free, "inodes": inodes, "free_inodes": free_inodes
    }  # fmt: skip


def smart(**changes: object) -> dict[str, object]:
    """`nvme smart-log -o json` of a fit disk."""
    return {
        "critical_warning": 0, "temperature": 312, "avail_spare": 100, "spare_thresh": 10,
        "percent_used": 3, "endurance_grp_critical_warning_summary": 0, "media_errors": 0,
        "data_units_read": 123456789, "num_err_log_entries": 17, **changes,
    }  # fmt: skip


def _nvme(node: FakeNode, words: Sequence[str]) -> Answer:
    for name, said in node.parts["smart"].items():
        if f"/dev/{name}" in words:
            return Answer(json.dumps(said, indent=2) if isinstance(said, dict) else said)
    return Answer(err="No such device", rc=2)
