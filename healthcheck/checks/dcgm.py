"""NVIDIA's DCGM: its diagnostic during burn-in, its background watches at any time."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.dcgm import Outcome, diag, health
from healthcheck.registry import check

_NO_GPUS = Result("SKIP", "has no GPUs by its profile")
_WARN_ONLY = ("monitor", "config")


@check("dcgm_diag", when=("deep",))
def dcgm_diag(facts: Facts) -> Iterator[Result]:
    """DCGM's diagnostic passes on every entity; how bad a failure is, DCGM says itself."""
    if facts.profile.gpus == 0:
        yield _NO_GPUS
        return
    seen = facts.once(diag)
    if seen.missing:
        yield Result("SKIP", "has no dcgmi")
        return
    if seen.why is not None:
        yield Result("UNKNOWN", f"got no result from dcgmi diag: {seen.why}")
        return
    bad = [outcome for outcome in seen.outcomes if outcome.status in ("fail", "warn")]
    for outcome in bad:
        yield _judge(outcome)
    if not bad:
        ran = sum(outcome.status == "pass" for outcome in seen.outcomes)
        yield Result("PASS", f"passes {ran} tests of dcgmi diag")


def _judge(outcome: Outcome) -> Result:
    what = f"fails {outcome.test} of dcgmi diag on {outcome.entity}: {outcome.text}"
    gpu = outcome.entity if outcome.entity.startswith("GPU ") else None
    if outcome.severity in _WARN_ONLY or outcome.status == "warn":
        rule = "dcgm_diag.config" if outcome.severity == "config" else "dcgm_diag.monitor"
        return Result("WARN", what, rule, gpu)
    if outcome.severity in ("isolate", "reset"):
        return Result("FAIL", what, f"dcgm_diag.{outcome.severity}", gpu)
    return Result("FAIL", what, None, gpu)


@check("dcgm_health", when=("periodic", "return", "deep"))
def dcgm_health(facts: Facts) -> Iterator[Result]:
    """DCGM's watches are content. They fail for a single NVLink replay, so in service they warn."""
    if facts.profile.gpus == 0:
        yield _NO_GPUS
        return
    seen = facts.once(health)
    if seen.overall is None:
        yield Result("SKIP" if seen.off else "UNKNOWN", seen.why)
        return
    said = "; ".join(seen.texts) or "it does not say why"
    if seen.overall == "Healthy":
        yield Result("PASS", "is healthy, says DCGM")
    elif seen.overall == "Failure" and facts.when != "periodic":
        yield Result("FAIL", f"is not healthy, says DCGM: {said}")
    else:
        yield Result("WARN", f"is not healthy, says DCGM: {said}", "dcgm_health.warning")
