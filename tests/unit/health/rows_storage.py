"""Disks and mounts, row by row."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from typing import Any

from tests.harness.fake_tools.node import BOOT_ID, FakeNode
from tests.harness.fake_tools.rows import Edit, Row
from tests.harness.fake_tools.storage import GIB, LOCAL, MDSTAT, MOUNTS, NVME, smart, volume


def file(path: str, content: object) -> Edit:
    """A file has another content; None: it cannot be read."""
    return lambda node: node.files.__setitem__(path, content)


def on(path: str, answer: Any) -> Edit:
    """What happens to who looks at a folder; None: it hangs."""
    return lambda node: node.volumes.__setitem__(path, answer)


def error(number: int) -> dict[str, int]:
    """It fails."""
    return {"error": number}


def mounts(old: str, new: str) -> Edit:
    """Something else is mounted."""
    assert old in MOUNTS
    return file("/proc/self/mountinfo", MOUNTS.replace(old, new))


def tried(answer: Any) -> Edit:
    """A shared folder is tried, and that happens."""

    def edit(node: FakeNode) -> None:
        node.site = replace(node.site, shared_paths=["/fsx"])
        node.volumes["/fsx"] = answer

    return edit


def said(disk: str, answer: object) -> Edit:
    """A disk says that of itself."""
    return lambda node: node.parts["smart"].__setitem__(disk, answer)


def worse(node: FakeNode) -> None:
    """A disk had fewer media errors a while ago."""
    node.parts["smart"]["nvme2"] = smart(media_errors=7)
    points = {"nvme.nvme2.media": [[node.now - 3600, 2]]}
    history = {"boot_id": BOOT_ID, "points": points, "since": {}}
    node.memory["counters.json"] = json.dumps(history)


def young(edit: Edit) -> Edit:
    """The same on a node that has just booted."""

    def first(node: FakeNode) -> None:
        node.files["/proc/uptime"] = "60.00 100.00"
        edit(node)

    return first


def gone(disk: str) -> Edit:
    """A disk is not there."""
    return lambda node: node.remove(f"{NVME}/{disk}")


def expect(**keys: object) -> Edit:
    """Other expectations."""

    def edit(node: FakeNode) -> None:
        node.profile = replace(node.profile, **keys)  # type: ignore[arg-type]

    return edit


def no_disks(node: FakeNode) -> None:
    """A node without NVMe."""
    node.remove(NVME)
    node.files["/sys/class/net/lo/mtu"] = "65536"
    node.profile = replace(node.profile, nvme_disks=None)


def site(**keys: object) -> Edit:
    """Another cluster."""

    def edit(node: FakeNode) -> None:
        node.site = replace(node.site, **keys)  # type: ignore[arg-type]

    return edit


MEDIA = '{"critical_warning": {"value": 4, "reliability": 1}, "media_errors": "12"}'
ROWS = [
    Row("enough", "scratch_space", "PASS"),
    Row("full", "scratch_space", "FAIL", on("/tmp", volume(GIB, 1000)), action="drain"),
    Row("hangs", "scratch_space", "FAIL", on("/tmp", None), action="drain", says="hangs on /tmp"),
    Row("not there", "scratch_space", "FAIL", on("/tmp", error(errno.ENOENT)),
        rule="scratch_space.missing"),
    Row("fails", "scratch_space", "UNKNOWN", on("/tmp", error(errno.EIO))),
    Row("no answer", "scratch_space", "UNKNOWN", on("/tmp", {})),
    Row("writable", "shared_writable", "PASS", tried(volume(1, 1)), when="gate"),
    Row("hangs", "shared_writable", "FAIL", tried(None), when="gate"),
    Row("stale", "shared_writable", "FAIL", tried(error(errno.ESTALE)), when="gate",
        says="stale file handle"),
    Row("read-only", "shared_writable", "FAIL", tried(error(errno.EROFS)), when="gate"),
    Row("full", "shared_writable", "WARN", tried(error(errno.ENOSPC)), when="gate"),
    Row("no answer", "shared_writable", "UNKNOWN", tried({}), when="gate"),
    Row("none given", "shared_writable", "SKIP", when="gate"),
    Row("enough", "disk_space", "PASS"),
    Row("rather full", "disk_space", "WARN", on("/var", volume(200 * GIB, 20 * GIB)), says="10%"),
    Row("rather full, but large", "disk_space", "PASS", on("/var", volume(9000 * GIB, 200 * GIB))),
    Row("full", "disk_space", "FAIL", on("/var", volume(100 * GIB, 3 * GIB)), action="drain"),
    Row("nearly full, but large", "disk_space", "WARN", on("/var", volume(900 * GIB, 20 * GIB))),
    Row("hangs", "disk_space", "FAIL", on("/var", None), rule="disk_space.hung"),
    Row("fails", "disk_space", "UNKNOWN", on("/var", error(errno.EIO)), says="Input/output error"),
    Row("size 0", "disk_space", "UNKNOWN", on("/var", volume(0, 0))),
    Row("enough", "disk_inodes", "PASS"),
    Row("few", "disk_inodes", "WARN", on("/", volume(GIB, GIB, 1000, 40))),
    Row("none", "disk_inodes", "FAIL", on("/", volume(GIB, GIB, 1000, 5)), action="drain"),
    Row("no limit", "disk_inodes", "SKIP", on("/", volume(GIB, GIB, 0, 0))),
    Row("hangs", "disk_inodes", "UNKNOWN", on("/", None)),
    Row("all there", "nvme_count", "PASS"),
    Row("one is gone", "nvme_count", "FAIL", gone("nvme5"), action="replace", says="7 of 8"),
    Row("one is not there yet", "nvme_count", "FAIL", young(gone("nvme5")),
        rule="nvme_count.young"),
    Row("all are gone", "nvme_count", "UNKNOWN", lambda node: node.remove(NVME)),
    Row("one cannot be read", "nvme_count", "UNKNOWN", file(f"{NVME}/nvme5/model", None)),
    Row("one more", "nvme_count", "WARN", file(f"{NVME}/nvme12/model", LOCAL),
        rule="nvme_count.more"),
    Row("over the network", "nvme_count", "PASS", lambda node: node.files.update({
        f"{NVME}/nvme12/model": LOCAL, f"{NVME}/nvme12/transport": "tcp"})),
    Row("another volume", "nvme_count", "PASS",
        file(f"{NVME}/nvme12/model", "Amazon Elastic Block Store")),
    Row("not a controller", "nvme_count", "PASS", file(f"{NVME}/nvme-fabrics/model", LOCAL)),
    Row("nothing expected", "nvme_count", "SKIP", expect(nvme_disks=None)),
    Row("all live", "nvme_state", "PASS"),
    Row("dead", "nvme_state", "FAIL", file(f"{NVME}/nvme5/state", "dead"), action="replace"),
    Row("resetting", "nvme_state", "WARN", file(f"{NVME}/nvme5/state", "resetting")),
    Row("unreadable", "nvme_state", "UNKNOWN", file(f"{NVME}/nvme5/state", None)),
    Row("no disks", "nvme_state", "SKIP", no_disks),
    Row("whole", "disk_array", "PASS"),
    Row("a member is gone", "disk_array", "FAIL",
        file("/proc/mdstat", MDSTAT.replace("[UU]", "[U_]")), action="replace", says="md0"),
    Row("stopped", "disk_array", "FAIL",
        file("/proc/mdstat", MDSTAT.replace(": active", ": inactive")), action="replace"),
    Row("unreadable", "disk_array", "UNKNOWN", file("/proc/mdstat", None)),
    Row("none", "disk_array", "SKIP", lambda node: node.remove("/proc/mdstat")),
    Row("well", "nvme_smart", "PASS"),
    Row("not reliable", "nvme_smart", "FAIL", said("nvme2", smart(critical_warning=4)),
        action="replace", says="nvme2 that is no longer reliable"),
    *(
        Row(f"bit {bit}", "nvme_smart", "FAIL", said("nvme2", smart(critical_warning=bit)),
            action="replace", says=text)
        for bit, text in ((1, "spare"), (8, "read-only"), (16, "backup"), (32, "persistent"))
    ),
    Row("written out", "nvme_smart", "FAIL", said("nvme2", MEDIA), action="replace"),
    Row("hot", "nvme_smart", "WARN", said("nvme2", smart(critical_warning=2))),
    Row("worn", "nvme_smart", "WARN", said("nvme2", smart(percent_used=104)), says="104 %"),
    Row("old keys", "nvme_smart", "WARN", said("nvme2", smart(percent_used=None,
        percentage_used="104"))),
    Row("more media errors", "nvme_smart", "WARN", worse, says="5 more media errors"),
    Row("old media errors", "nvme_smart", "PASS", said("nvme2", smart(media_errors=7))),
    Row("a volume of the cloud is not asked", "nvme_smart", "PASS", said("nvme0", "no")),
    Row("cut", "nvme_smart", "UNKNOWN", said("nvme2", json.dumps(smart())[:-9])),
    Row("no program", "nvme_smart", "SKIP", lambda node: node.tools.pop("nvme")),
    Row("no disks", "nvme_smart", "SKIP", no_disks),
    Row("writable", "mounts_writable", "PASS"),
    Row("turned read-only", "mounts_writable", "FAIL",
        mounts("/dev/nvme0n1p1 rw", "/dev/nvme0n1p1 ro"), action="reboot", says="/ (/dev/nvme0"),
    Row("turned read-only by a new kernel", "mounts_writable", "FAIL", mounts(
        "rw,discard,errors=remount-ro", "rw,errors=remount-ro,emergency_ro"), action="reboot"),
    Row("an image of a user", "mounts_writable", "PASS",
        mounts("/dev/nvme0n1p1 rw", "/dev/loop5 ro")),
    Row("mounted so", "mounts_writable", "PASS", mounts(
        "/ rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw",
        "/ ro,relatime shared:1 - ext4 /dev/nvme0n1p1 ro")),
    Row("unreadable", "mounts_writable", "UNKNOWN", file("/proc/self/mountinfo", None)),
    Row("nonsense", "mounts_writable", "UNKNOWN", file("/proc/self/mountinfo", "a b c\n - \n")),
    Row("all", "mounts_present", "PASS"),
    Row("one is not", "mounts_present", "FAIL", mounts("/fsx rw", "/old rw"), says="/fsx"),
    Row("with a blank in its name", "mounts_present", "PASS",
        site(mounts=["/scratch fast/", "/"])),
    Row("unreadable", "mounts_present", "UNKNOWN", file("/proc/self/mountinfo", None)),
    Row("none listed", "mounts_present", "SKIP", site(mounts=[])),
    Row("all answer", "mounts_alive", "PASS", says="gets answers from /fsx"),
    Row("hangs", "mounts_alive", "FAIL", on("/fsx", None), says="hangs on /fsx"),
    Row("stale", "mounts_alive", "FAIL", on("/fsx", error(errno.ESTALE)), says="Stale"),
    Row("refused", "mounts_alive", "PASS", on("/fsx", error(errno.EACCES))),
    Row("no answer", "mounts_alive", "UNKNOWN", on("/fsx", {})),
    Row("unreadable", "mounts_alive", "UNKNOWN", file("/proc/self/mountinfo", None)),
    Row("none", "mounts_alive", "SKIP", mounts("lustre 10.0.3.4@tcp:/fsx", "ext4 /dev/sdb")),
]  # fmt: skip
