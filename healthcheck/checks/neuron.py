"""AWS Neuron devices (Trainium): are all there, and without memory errors?"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.neuron import COUNTERS, neurons
from healthcheck.registry import check

_NONE = Result("SKIP", "has no Neuron devices by its profile")


@check("neuron_count")
def neuron_count(facts: Facts) -> Iterator[Result]:
    """As many Neuron devices as the profile says."""
    wanted = facts.profile.neuron_devices
    if not wanted:
        yield _NONE
        return
    shown = len(facts.once(neurons))
    if not shown:
        yield Result("UNKNOWN", "shows no Neuron device: is its driver loaded?")
    elif shown < wanted:
        yield Result("FAIL", f"shows {shown} of {wanted} Neuron devices")
    else:
        yield Result("PASS", f"shows {shown} of {wanted} Neuron devices")


@check("neuron_ecc")
def neuron_ecc(facts: Facts) -> Iterator[Result]:
    """No Neuron device had an uncorrected memory error since its driver was loaded."""
    wanted = facts.profile.neuron_devices
    if not wanted:
        yield _NONE
        return
    found = False
    for device in facts.once(neurons):
        count = sum(device.errors.values())
        if count > 0:
            found = True
            yield Result("FAIL", f"has {count} uncorrected memory errors on {device.name}")
    counted = sum(len(device.errors) == len(COUNTERS) for device in facts.once(neurons))
    if counted < wanted:
        yield Result("UNKNOWN", f"counts memory errors of {counted} Neuron devices only")
    elif not found:
        yield Result("PASS", f"had no uncorrected memory error on {counted} Neuron devices")
