"""Texts of the kernel, row by row: each real one, and others that only look like it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row

# check: lines, all of which FAIL; {rule: lines} that WARN.
FAILS = {
    "kernel_memory": (
        "EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)",
        "Memory failure: 0x1b7f3e2: recovery action for dirty LRU page: Recovered",
        "mce: [Hardware Error]: CPU 37: Machine Check Exception: 5 Bank 7: be00000000800400",
        "{1}[Hardware Error]: event severity: fatal",
        "[Hardware Error]: event severity: recoverable",
    ),
    "kernel_nvme": (
        "nvme nvme3: Removing after probe failure status: -19",
        "nvme nvme3: Disabling device after reset failure: -19",
        "nvme nvme3: Device not ready; aborting reset, CSTS=0x1",
        "blk_update_request: critical medium error, dev nvme3n1, sector 1234 op 0x0:(READ)",
        "critical medium error, dev nvme3n1, sector 1234 op 0x0:(READ) flags 0x80700",
        "I/O error, dev nvme3n1, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
        "blk_update_request: I/O error, dev nvme3n1, sector 2048 op 0x1:(WRITE)",
        "Buffer I/O error on dev nvme3n1p2, logical block 0, async page read",
    ),
    "kernel_filesystem": (
        "EXT4-fs (nvme0n1p1): Remounting filesystem read-only",
        "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm sshd: reading dir",
        "EXT4-fs (dm-0): Remounting filesystem read-only",
        "XFS (md0): Corruption of in-memory data (0x8) detected at xfs_defer_finish_noroll",
        "XFS (md0): Metadata corruption detected at xfs_agf_read_verify+0x8c/0xf0",
        "XFS (md0): Filesystem has been shut down due to log error (0x2).",
        "XFS (md0): log I/O error -5. Shutting down filesystem",
        "BTRFS error (device sda2): parent transid verify failed: forced readonly",
        "BTRFS critical (device sda2 state A): corrupt leaf: root=5 block=30408704",
        "md/raid1:md0: Disk failure on nvme1n1, disabling device.",
    ),
    "kernel_nic": (
        "mlx5_core 0000:5c:00.0: poll_health:825:(pid 0): device's health compromised - reached",
        "mlx5_core 0000:5c:00.0: mlx5_health_try_recover: health recovery failed",
        "efa 0000:40:1b.0: Reset attempt failed. Can not reset the device",
    ),
    "kernel_stuck": (
        "BUG: unable to handle page fault for address: ffffa0b3c0de0000",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "kernel BUG at fs/ext4/inode.c:2600!",
        "Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
        "watchdog: Watchdog detected hard LOCKUP on cpu 12",
    ),
}
WARNS = {
    "kernel_memory.corrected": ("EDAC MC3: 1 CE memory read error on CPU_SrcID#1_MC#0_Chan#1",),
    "kernel_memory.heat": (
        "mce: CPU12: Package temperature above threshold, cpu clock throttled (total events = 9)",
        "mce: CPU12: Core temperature is above threshold, cpu clock is throttled (total events",
    ),
    "kernel_nvme.slow": (
        "nvme nvme3: I/O 123 QID 5 timeout, aborting",
        "nvme nvme3: I/O tag 6 (1006) opcode 0x1 (Write) QID 5 timeout, reset controller",
        "nvme nvme3: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10",
    ),
    "kernel_nic.warning": (
        "mlx5_core 0000:5c:00.0: pcie: Detected insufficient power on the PCIe slot (27W).",
        "mlx5_core 0000:5c:00.0: temp_warn:206:(pid 0): High temperature on sensors with bit set",
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
        "NETDEV WATCHDOG: ens5 (ena): transmit queue 3 timed out 5000 ms",
    ),
    "kernel_stuck.slow": (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "INFO: task python3:4242 blocked for more than 120 seconds.",
    ),
    "kernel_program": (
        "Out of memory: Killed process 4242 (python3) total-vm:9999kB, anon-rss:9999kB",
        "Memory cgroup out of memory: Killed process 4242 (pt_main_thread) total-vm:9999kB",
        "python3[4242]: segfault at 8 ip 00007f sp 00007f error 4 in libnccl.so.2.21.5[7f00+8000]",
    ),
}
ACTIONS = {
    "kernel_memory": "replace",
    "kernel_nvme": "replace",
    "kernel_filesystem": "reboot",
    "kernel_nic": "reboot",
    "kernel_stuck": "reboot",
}
HARMLESS = (
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "EDAC skx: ecc is enabled",
    "mce: [Hardware Error]: Machine check events logged",
    "MCE: In-kernel MCE decoding enabled.",
    "nvme nvme3: 8/0/0 default/read/poll queues",
    "nvme nvme3: Shutdown timeout set to 10 seconds",
    "EXT4-fs (nvme0n1p1): mounted filesystem 1234 r/w with ordered data mode. Quota mode: none.",
    "EXT4-fs (nvme0n1p1): re-mounted 1234 ro. Quota mode: none.",
    "EXT4-fs error (device loop3): ext4_lookup:1855: inode #12: comm python3: iget: bad extra",
    "XFS (md0): Mounting V5 Filesystem 1234",
    "XFS (md0): Ending clean mount",
    "XFS (loop7): Metadata corruption detected at xfs_agf_read_verify+0x8c/0xf0",
    "I/O error, dev loop0, sector 2048 op 0x0:(READ) flags 0x0",
    "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0",
    "mlx5_core 0000:5c:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
    "efa 0000:40:1b.0: Setup irq:0x0: name:efa-mgmnt@pci:0000:40:1b.0",
    "WARNING: CPU: 3 PID: 4242 at net/sched/sch_generic.c:525 dev_watchdog+0x1f9/0x200",
    "traps: python3[4242] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+8000]",
    "python3[4242]: segfault at 0 ip 00005 sp 00007 error 4 in python3.11[400000+2bb000]",
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate",
    "nfs: server 10.0.0.9 OK",
    "INFO: task scheduler started",
)
NFS = "nfs: server 10.0.0.9 not responding, still trying"
LOST = "Lustre: fsx-OST0001-osc-ffff: Connection to fsx-OST0001 (at 10.0.3.4@tcp) was lost; in"
BACK = "Lustre: fsx-OST0001-osc-ffff: Connection restored to 10.0.3.4@tcp (at 10.0.3.4@tcp)"


def says(*lines: str, at_s: float | None = None) -> Edit:
    """The kernel says that, one after the other."""

    def edit(node: FakeNode) -> None:
        for line in lines:
            node.log(line, at_s)

    return edit


def fakes(*lines: str) -> Edit:
    """A program writes that into the kernel's log, or has it in its name."""

    def edit(node: FakeNode) -> None:
        for line in lines:
            node.user.append((node.uptime_s - 60, line))
            node.log(f"audit: type=1400 comm={line}")
            node.log(f"INFO: task {line[:15]} is not blocked")
            node.log(f"x\\x0a{line}")

    return edit


def unreadable(node: FakeNode) -> None:
    """Neither the device nor the journal says anything."""
    del node.files["/proc/uptime"]


def denied(node: FakeNode) -> None:
    """An ordinary user asks."""
    node.kernel_readable = False


def check_of(rule: str) -> str:
    """The check that a rule belongs to."""
    return rule.partition(".")[0]


def rows() -> Iterator[Row]:
    """All rows."""
    for check, lines in FAILS.items():
        for line in lines:
            yield Row(line[:60], check, "FAIL", says(line), action=ACTIONS[check], says=line[:30])
        old = says(lines[0], at_s=1.0)
        yield Row("long ago, but in this boot", check, "FAIL", old, action=ACTIONS[check])
        yield Row("a program says so", check, "PASS", fakes(*lines))
        twice = says(lines[0], lines[0])
        yield Row("twice", check, "FAIL", twice, action=ACTIONS[check], says=", 2 times")
    for rule, lines in WARNS.items():
        for line in lines:
            yield Row(line[:60], check_of(rule), "WARN", says(line), rule=rule)
            text = f"{line[:40]} long ago"
            yield Row(text, check_of(rule), "PASS", says(line, at_s=1.0))
    for check in sorted({*FAILS, "kernel_program", "kernel_mount"}):
        yield Row("nothing but harmless lines", check, "PASS", says(*HARMLESS))
        yield Row("cannot be read", check, "UNKNOWN", unreadable)
        yield Row("may not be read", check, "SKIP", denied)


ROWS = [
    *rows(),
    Row("a volume of the cloud", "kernel_nvme", "WARN", says(
        "I/O error, dev nvme0n1, sector 2048 op 0x0:(READ)"), rule="kernel_nvme.volume"),
    Row("a server is silent", "kernel_mount", "WARN", says(NFS), says="10.0.0.9"),
    Row("it came back", "kernel_mount", "PASS", says(NFS, "nfs: server 10.0.0.9 OK")),
    Row("another came back", "kernel_mount", "WARN", says(NFS, "nfs: server 10.0.0.8 OK")),
    Row("Lustre is silent", "kernel_mount", "WARN", says(LOST), says="fsx-OST0001"),
    Row("Lustre came back", "kernel_mount", "PASS", says(LOST, BACK)),
    Row("silent again", "kernel_mount", "WARN", says(LOST, BACK, LOST)),
    Row("a program says so", "kernel_mount", "PASS", fakes(NFS, LOST)),
]  # fmt: skip
