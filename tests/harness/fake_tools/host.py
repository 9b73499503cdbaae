"""Processors, memory, clock, services and Slurm's opinion of a fit node."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.fake_tools.node import FakeNode

CPUS, MEMORY_GIB = 192, 2048
SERVICES = ("slurmd", "munge", "chronyd")
TRACKING = (
    "A9FEA97B,169.254.169.123,4,1800000000.100,-0.000004711,0.000001200,0.000014000,"
    "-5.912,0.000,0.030,0.000410000,0.000091000,16.1,Normal\n"
)
EDAC = "/sys/devices/system/edac/mc"
NODE = (
    "NodeName=n3 Arch=x86_64 CoresPerSocket=48 \n"
    "   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.12\n"
    "   Gres=gpu:h100:8(S:0-1)\n"
    "   OS=Linux 6.8.0-1021-aws #23-Ubuntu SMP \n"
    "   RealMemory=2000000 AllocMem=0 FreeMem=1900000 Sockets=2 Boards=1\n"
    "   State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
    "   Partitions=main \n"
)


def add(node: FakeNode) -> None:
    """A host of two sockets and 16 memory controllers."""
    node.files["/proc/meminfo"] = (
        f"MemTotal:       {MEMORY_GIB * 1024 * 1024 - 40_000_000} kB\n"
        "MemFree:        1990000000 kB\nMemAvailable:   1995000000 kB\n"
    )
    node.files["/sys/devices/system/cpu/online"] = f"0-{CPUS - 1}"
    for controller in range(16):
        node.files[f"{EDAC}/mc{controller}/ue_count"] = "0"
        node.files[f"{EDAC}/mc{controller}/ce_count"] = "3"
    node.files["/proc/self/limits"] = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            131072               131072               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n"
    )
    node.say("chronyc", TRACKING, words="tracking")
    node.say("systemctl", "active\n" * len(SERVICES), words="is-active")
    node.say("scontrol", NODE, words="show node")
    node.site = replace(node.site, services=list(SERVICES))
    node.profile = replace(node.profile, cpus=CPUS, memory_gib=float(MEMORY_GIB))
