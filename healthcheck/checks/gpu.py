"""GPUs: does the driver answer, are all of them there, does one report memory errors?

All from one call of nvidia-smi. With the profile `cpu` nothing is called and all is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.registry import check
from muster.process import RC_NOT_FOUND

# Exit codes that nvidia-smi documents. 2 (bad argument), 4 (permission) and 6 (no match) are our
# own mistakes and say nothing about the node.
_HARDWARE = {8: "a power cable is off", 14: "an infoROM is damaged"}
_FELL_OFF = 15
_SOFTWARE = {9: "the driver is not loaded", 12: "NVML is missing", 18: "driver and library differ"}
_LOST = (
    "Unable to determine the device handle",
    "GPU is lost",
    "fallen off the bus",
    "No devices were found",
    "[Unknown Error]",
    "ERR!",
)
NO_GPUS = Result("SKIP", "has no GPUs by its profile")
NO_ANSWER = Result("UNKNOWN", "got no answer from nvidia-smi")


def _without_gpus(facts: Facts) -> bool:
    """No GPU expected by anybody, and no driver either."""
    return facts.profile.gpus == 0 or (facts.expected_gpus is None and facts.smi.rc == RC_NOT_FOUND)


@check("nvidia_smi")
def nvidia_smi(facts: Facts) -> Iterator[Result]:
    """nvidia-smi answers, in time, without an error."""
    if _without_gpus(facts):
        yield NO_GPUS
        return
    smi = facts.smi
    if smi.timed_out:
        yield Result("FAIL", "got no answer from nvidia-smi, twice", rule="nvidia_smi.hung")
    elif smi.rc == RC_NOT_FOUND:
        yield Result("FAIL", "has no nvidia-smi", rule="nvidia_smi.missing")
    elif smi.rc in _HARDWARE:
        yield Result("FAIL", f"has a GPU fault: {_HARDWARE[smi.rc]}", rule="nvidia_smi.hardware")
    elif smi.rc == _FELL_OFF:
        yield Result("FAIL", "has a GPU that fell off the bus", rule="nvidia_smi.fell_off")
    elif smi.rc in _SOFTWARE:
        yield Result("FAIL", f"cannot use its GPUs: {_SOFTWARE[smi.rc]}")
    elif smi.rc != 0:
        yield Result("UNKNOWN", f"has nvidia-smi ending with {smi.rc}: {smi.reason}")
    else:
        yield Result("PASS", "nvidia-smi answers")


@check("gpu_lost")
def gpu_lost(facts: Facts) -> Iterator[Result]:
    """No text that the driver prints about a GPU it has lost."""
    if _without_gpus(facts):
        yield NO_GPUS
        return
    if facts.smi.timed_out or facts.smi.rc == RC_NOT_FOUND:
        yield NO_ANSWER
        return
    for line in f"{facts.smi.out}\n{facts.smi.err}".splitlines():
        if any(text in line for text in _LOST):
            bus = re.search(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}", line)
            said = " ".join(line.split())[:120]
            yield Result("FAIL", f"lost a GPU: {said}", gpu=bus[0] if bus else None)
            return
    yield Result("PASS" if facts.gpus else "UNKNOWN", "reports no lost GPU")


@check("gpu_count")
def gpu_count(facts: Facts) -> Iterator[Result]:
    """As many GPUs as the profile says; without one, as Slurm and the PCI bus say."""
    if _without_gpus(facts):
        yield NO_GPUS
        return
    shown, expected = len(facts.gpus), facts.expected_gpus
    answered = facts.smi.ok or "No devices were found" in facts.smi.out + facts.smi.err
    if not answered and not shown:
        yield NO_ANSWER
    elif expected is None:
        yield Result("PASS", f"shows {shown} GPUs, nothing to compare them with")
    elif shown < expected:
        on_bus = facts.pci_gpus is not None and facts.pci_gpus >= expected
        rule = "gpu_count.driver" if on_bus else "gpu_count"
        yield Result("FAIL", f"shows {shown} of {expected} GPUs", rule=rule)
    elif shown > expected:
        yield Result(
            "WARN", f"shows {shown} GPUs where {expected} are expected", rule="gpu_count.more"
        )
    else:
        yield Result("PASS", f"shows {shown} of {expected} GPUs")


@check("gpu_ecc")
def gpu_ecc(facts: Facts) -> Iterator[Result]:
    """No uncorrected memory error since the driver was loaded."""
    if _without_gpus(facts):
        yield NO_GPUS
        return
    if not facts.gpus:
        yield NO_ANSWER
        return
    counted = 0
    for gpu in facts.gpus:
        if gpu.ecc.isdecimal():
            counted += 1
            if int(gpu.ecc) > 0:
                yield Result(
                    "FAIL", f"has {gpu.ecc} uncorrected memory errors on GPU {gpu.index}",
                    gpu=gpu.name,
                )  # fmt: skip
        elif gpu.ecc not in ("[N/A]", "N/A", "[Not Supported]"):
            yield Result("UNKNOWN", f"reports memory errors of GPU {gpu.index} as {gpu.ecc}")
    yield Result("PASS" if counted else "SKIP", f"counts memory errors on {counted} GPUs")
