"""GPUs: does the driver answer, are all of them there?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Optional

from healthcheck.counters import held_s
from healthcheck.each_gpu import NO_ANSWER, NO_GPUS
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.gpu import NONE_FOUND, Smi, expected, gres, listed, smi, whole, without_gpus
from healthcheck.read.pci import pci_gpus
from healthcheck.registry import check

# Exit codes that nvidia-smi documents. 2 (bad argument), 4 (permission) and 6 (no match) are our
# own mistakes and say nothing about the node.
_HARDWARE = {8: "a power cable is off", 14: "an infoROM is damaged"}
_FELL_OFF = 15
_SOFTWARE = {9: "the driver is not loaded", 12: "NVML is missing", 18: "driver and library differ"}
_LOST = (
    "Unable to determine the device handle",
    "GPU is lost",
    "fallen off the bus",
    NONE_FOUND,
    "[Unknown Error]",
    "ERR!",
)
HUNG_S = 900.0
"""So long it must have hung in every run, three runs at least, before the node is blamed: on a busy
node, or with a driver that loads anew for each question, a healthy one is slow too."""
_ASKED_FOR = ("gate", "return", "deep", "pair")  # somebody waits for the GPUs right now


@check("nvidia_smi")
def nvidia_smi(facts: Facts) -> Iterator[Result]:
    """nvidia-smi answers, in time, without an error."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    seen = facts.once(smi)
    if seen.hurried:
        yield Result("UNKNOWN", "had no time left to wait for nvidia-smi")
        return
    hung_s = held_s(facts, "nvidia_smi.hung", on=seen.done.timed_out)
    if seen.done.timed_out:
        yield _hung(facts, seen, hung_s or 0.0)
    elif seen.missing:
        yield Result("FAIL", "has no nvidia-smi", rule="nvidia_smi.missing")
    elif seen.done.rc in _HARDWARE:
        yield Result(
            "FAIL", f"has a GPU fault: {_HARDWARE[seen.done.rc]}", rule="nvidia_smi.hardware"
        )
    elif seen.done.rc == _FELL_OFF:
        yield Result("FAIL", "has a GPU that fell off the bus", rule="nvidia_smi.fell_off")
    elif seen.done.rc in _SOFTWARE:
        yield Result("FAIL", f"cannot use its GPUs: {_SOFTWARE[seen.done.rc]}")
    elif seen.done.rc != 0:
        yield Result("UNKNOWN", f"has nvidia-smi ending with {seen.done.rc}: {seen.done.reason}")
    elif not seen.gpus:
        yield Result("UNKNOWN", "has nvidia-smi saying nothing about any GPU")
    else:
        yield Result("PASS", "nvidia-smi answers")


def _hung(facts: Facts, seen: Smi, hung_s: float) -> Result:
    """Two time-outs in a row: the driver hangs, or it is only slow."""
    if seen.unkillable or hung_s >= HUNG_S or facts.when == "suspect":
        how = "cannot even be killed" if seen.unkillable else f"hangs since {hung_s / 60:.0f} min"
        return Result("FAIL", f"has nvidia-smi hanging: it {how}", rule="nvidia_smi.hung")
    if facts.when in _ASKED_FOR:
        return Result("FAIL", "got no answer from nvidia-smi, twice", rule="nvidia_smi.slow")
    return Result("UNKNOWN", "got no answer from nvidia-smi, twice")


@check("gpu_lost")
def gpu_lost(facts: Facts) -> Iterator[Result]:
    """No text that the driver prints about a GPU it has lost."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    seen = facts.once(smi)
    if seen.done.timed_out or seen.missing:
        yield NO_ANSWER
        return
    for line in seen.text.splitlines():
        if any(text in line for text in _LOST):
            yield Result("FAIL", f"lost a GPU: {' '.join(line.split())[:120]}", gpu=_bus(line))
            return
    if not seen.done.ok or not _all(facts, len(seen.gpus)):
        yield Result("UNKNOWN", "got no whole answer from nvidia-smi")
    else:
        yield Result("PASS", "reports no lost GPU")


def _bus(line: str) -> Optional[str]:
    found = re.search(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}", line)
    return found[0] if found else None


def _all(facts: Facts, shown: int) -> bool:
    return 0 < shown >= (facts.once(expected) or 0)


@check("gpu_count")
def gpu_count(facts: Facts) -> Iterator[Result]:
    """As many GPUs as the profile says; without one, as Slurm and the PCI bus say."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    seen, wanted = facts.once(smi), facts.once(expected)
    shown = len(seen.gpus)
    if not shown and NONE_FOUND not in seen.text:
        yield NO_ANSWER
    elif wanted is None:
        yield Result("PASS", f"shows {shown} GPUs, nothing to compare them with")
    elif shown < wanted:
        yield _too_few(facts, shown, wanted)
    elif shown > max(wanted, facts.once(whole) or 0):
        what = f"shows {shown} GPUs where {wanted} are expected"
        yield Result("WARN", what, rule="gpu_count.more")
    else:
        yield from _as_slurm_says(facts, shown, wanted)


def _too_few(facts: Facts, shown: int, wanted: int) -> Result:
    """An answer that was cut shows too few as well: only a second question makes it a fault."""
    again = facts.once(listed)
    if again != shown:
        count = "nothing" if again is None else again
        return Result("UNKNOWN", f"shows {shown} of {wanted} GPUs, and {count} when asked again")
    on_bus = facts.once(pci_gpus)
    rule = "gpu_count.driver" if on_bus is not None and on_bus >= wanted else "gpu_count"
    return Result("FAIL", f"shows {shown} of {wanted} GPUs", rule=rule)


def _as_slurm_says(facts: Facts, shown: int, wanted: int) -> Iterator[Result]:
    given = facts.once(gres)
    total = max(shown, facts.once(whole) or 0)  # a job may have fewer
    if given is not None and given != total:
        what = f"has {total} GPUs where Slurm gives {given} (Gres)"
        yield Result("WARN", what, rule="gpu_count.gres")
    else:
        yield Result("PASS", f"shows {shown} of {wanted} GPUs")
