"""The NVIDIA driver: its part in the kernel and its library are of one version."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.driver import installed, library, loaded
from healthcheck.read.gpu import without_gpus
from healthcheck.registry import check


@check("driver_match")
def driver_match(facts: Facts) -> Iterator[Result]:
    """Programs load the library of the driver that runs: an update without a reboot breaks that."""
    if without_gpus(facts) or not facts.profile.gpus_on_pci:
        yield Result("SKIP", "has no NVIDIA driver by its profile")
        return
    running, loads = facts.once(loaded), facts.once(library)
    if running is None:
        yield Result("UNKNOWN", "does not say which driver is loaded")
    elif loads is None:
        yield Result("SKIP", "keeps the library of its driver in a place of its own")
    elif running != loads:
        yield Result("FAIL", f"runs driver {running} with the library of {loads}")
    else:
        yield Result("PASS", f"runs driver {running}")


@check("driver_update", when=("periodic", "return", "deep"))
def driver_update(facts: Facts) -> Iterator[Result]:
    """The driver that the next boot would load is the one that runs."""
    if without_gpus(facts) or not facts.profile.gpus_on_pci:
        yield Result("SKIP", "has no NVIDIA driver by its profile")
        return
    running, waits = facts.once(loaded), facts.once(installed)
    if running is None or waits is None:
        yield Result("UNKNOWN", f"has driver {running} in the kernel and {waits} on its disk")
    elif running != waits:
        yield Result("WARN", f"runs driver {running}; the next boot would load {waits}")
    else:
        yield Result("PASS", f"will run driver {running} after a boot, too")
