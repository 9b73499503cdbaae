"""NVLink: are all links of every GPU up, and do they stay up?"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.counters import growth
from healthcheck.each_gpu import NO_GPUS
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.gpu import expected, smi, without_gpus
from healthcheck.read.nvlink import Links, errors, status
from healthcheck.registry import check

_WINDOW_S = 3 * 3600.0
_MOST_RECOVERIES = 3
_NO_ANSWER = Result("UNKNOWN", "got no answer about NVLink")
_NONE = Result("SKIP", "uses no NVLink")


@check("nvlink_links")
def nvlink_links(facts: Facts) -> Iterator[Result]:
    """All NVLinks of every GPU are up: as many as the profile says, else as its peers have."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    if facts.profile.nvlinks == 0 or _mig(facts):
        yield _NONE
        return
    seen = facts.once(status)
    most = max((len(links.up) for links in seen.gpus.values()), default=0)
    wanted = most if facts.profile.nvlinks is None else facts.profile.nvlinks
    if not seen.answered:
        yield _NO_ANSWER
    elif wanted == 0:
        yield _NONE
    else:
        yield from _links(facts, list(seen.gpus.values()), wanted)


def _links(facts: Facts, gpus: list[Links], wanted: int) -> Iterator[Result]:
    found = False
    for links in gpus:
        short = len(links.up) < wanted
        if short and len(links.up) + len(links.down) < wanted and not links.all_down:
            found = True
            what = f"shows {len(links.up) + len(links.down)} of {wanted} NVLinks"
            yield Result("UNKNOWN", f"{what} of GPU {links.index}", gpu=_name(facts, links))
        elif short:
            found = True
            what = f"has {len(links.up)} of {wanted} NVLinks up on GPU {links.index}"
            known = facts.profile.nvlinks is not None  # two bridged cards of four are no fault
            yield Result("FAIL" if known else "WARN", what, gpu=_name(facts, links))
    if not found and len(gpus) < (facts.once(expected) or 0):
        yield Result("UNKNOWN", f"shows the NVLinks of {len(gpus)} GPUs only")
    elif not found:
        yield Result("PASS", f"has {wanted} NVLinks up on each GPU")


@check("nvlink_errors", when=("periodic", "return", "deep", "suspect"))
def nvlink_errors(facts: Facts) -> Iterator[Result]:
    """The error counters of NVLink do not grow; links that come back again and again are broken."""
    if without_gpus(facts):
        yield NO_GPUS
        return
    if facts.profile.nvlinks == 0:
        yield _NONE
        return
    seen = facts.once(errors)
    if not seen.answered:
        yield _NO_ANSWER
    elif not any(links.errors for links in seen.gpus.values()):
        yield _NONE if not facts.profile.nvlinks else _NO_ANSWER
    else:
        yield from _errors(facts, list(seen.gpus.values()))


def _errors(facts: Facts, gpus: list[Links]) -> Iterator[Result]:
    found = False
    for links in gpus:
        counts = {f"nvlink.{links.index}.{n}.{kind}": c for (n, kind), c in links.errors.items()}
        grown = {key: count for key, count in growth(facts, counts, _WINDOW_S).items() if count}
        if not grown:
            continue
        found = True
        back = sum(count for key, count in grown.items() if key.endswith(".Recovery"))
        what = f"had {sum(grown.values())} NVLink errors within 3 h on GPU {links.index}"
        if back >= _MOST_RECOVERIES:
            yield Result("FAIL", f"{what}, {back} recoveries", gpu=_name(facts, links))
        else:
            yield Result("WARN", what, gpu=_name(facts, links))
    if not found and len(gpus) < (facts.once(expected) or 0):
        yield Result("UNKNOWN", f"shows the NVLink errors of {len(gpus)} GPUs only")
    elif not found:
        yield Result("PASS", "has no NVLink error counter that grows")


def _mig(facts: Facts) -> bool:
    return any(gpu.get("mig.mode.current") == "Enabled" for gpu in facts.once(smi).gpus)


def _name(facts: Facts, links: Links) -> str:
    found = next((g.name for g in facts.once(smi).gpus if g.index == links.index), None)
    return found or f"GPU {links.index}"
