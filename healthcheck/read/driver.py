"""Which NVIDIA driver is loaded, and which one its programs would use."""

from __future__ import annotations

from typing import Optional

from healthcheck import lazy
from healthcheck.facts import Facts

LOADED = "/proc/driver/nvidia/version"
_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
)
_VERSION = lazy.pattern(r"(?<![\d.])(\d{3}\.\d{1,3}(?:\.\d{1,3})?)(?![\d.])")
_MODINFO_S = 5.0


def parse_version(text: Optional[str]) -> Optional[str]:
    """The first driver version in a text, such as 570.86.15."""
    found = _VERSION.search(text or "")
    return found[1] if found else None


def loaded(facts: Facts) -> Optional[str]:
    """The version of the driver in the kernel; None: none is loaded."""
    return parse_version((facts.env.read(LOADED) or "").split("\n")[0])


def library(facts: Facts) -> Optional[str]:
    """The version of NVML that programs load, by the name that its link points to."""
    for folder in _FOLDERS:
        target = facts.env.link(f"{folder}/{_LIBRARY}")
        if target is not None:
            return parse_version(target.rpartition("libnvidia-ml.so.")[2])
    return None


def installed(facts: Facts) -> Optional[str]:
    """The version that the next boot would load."""
    done = facts.env.run(["modinfo", "-F", "version", "nvidia"], _MODINFO_S)
    return parse_version(done.out) if done.ok and done.out.endswith("\n") else None
