"""What NVIDIA's DCGM finds: `dcgmi diag` of version 3 and 4, and `dcgmi health`.

The exit status of dcgmi says nothing about the GPUs (226 is DCGM's way to say that a test failed,
or that it could not run one), so only the JSON counts, every entity of every test in it. An answer
without a single test is no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional

from healthcheck import lazy

if TYPE_CHECKING:
    from healthcheck.facts import Facts

HEALTH_S = 10.0
DIAG_S = {1: 60.0, 2: 900.0, 3: 2700.0, 4: 10000.0}
"""Longest time of each level; level 3 takes half an hour on eight GPUs."""

SEVERITY = {
    0: "none", 1: "monitor", 2: "isolate", 3: "unknown", 4: "triage", 5: "config", 6: "reset"
}  # fmt: skip
_STATUS = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "skipped": "skip"}
_NOT_FOUND = 127
_CONFIG_TEXT = lazy.pattern(r"persistence mode", re.IGNORECASE)  # version 3 names no severity


@dataclass(frozen=True)
class Outcome:
    """One test on one entity.

    Attributes:
        entity: such as `GPU 3`; version 3 may name several.
        status: `none`: it was not run, or DCGM says something that is not in its manual.
        severity: the worst of its warnings, by SEVERITY; None: version 3 knows none.
        text: the first warning.
    """

    test: str
    entity: str
    status: Literal["pass", "fail", "warn", "skip", "none"]
    severity: Optional[str] = None
    text: str = ""


@dataclass(frozen=True)
class Diag:
    """A whole run; `why` says what went wrong with the run itself, then nothing else counts."""

    outcomes: tuple[Outcome, ...] = ()
    why: Optional[str] = None
    missing: bool = False


def parse_diag(text: str) -> Diag:
    """The JSON of `dcgmi diag -j`, which may stand between other lines."""
    said = _object(text)
    if said is None:
        return Diag(why="no JSON in its answer")
    root = next((said[k] for k in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if k in said), None)
    if not isinstance(root, dict):
        return Diag(why="an answer of a form that nobody knows")
    error = root.get("runtime_error") or said.get("runtime_error")
    if error:
        return Diag(why=str(error))
    outcomes = tuple(_outcomes(root))
    if not any(outcome.status in ("pass", "fail", "warn") for outcome in outcomes):
        return Diag(why="no test was run")
    return Diag(outcomes)


def _object(text: str) -> Optional[dict[str, Any]]:
    start = text.find("{")
    try:
        said, _ = json.JSONDecoder().raw_decode(text[start:] if start >= 0 else "")
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _outcomes(root: dict[str, Any]) -> Iterator[Outcome]:
    tests = _dicts(root.get("tests"))
    for category in _dicts(root.get("test_categories")):
        tests += _dicts(category.get("tests"))
    for test in tests:
        name = str(test.get("name", "a test"))
        found = [_outcome(name, result) for result in _dicts(test.get("results"))]
        yield from found
        summary = test.get("test_summary")
        if isinstance(summary, dict) and not any(o.status == "fail" for o in found):
            total = _outcome(name, summary)
            if total.status == "fail":
                yield total


def _outcome(name: str, result: dict[str, Any]) -> Outcome:
    warnings = result.get("warnings")
    texts, severities = [], []
    for warning in warnings if isinstance(warnings, list) else []:
        if isinstance(warning, dict):
            texts.append(str(warning.get("warning", "")))
            severities.append(warning.get("error_severity"))
        else:
            texts.append(str(warning))
    return Outcome(
        name,
        _entity(result),
        _STATUS.get(str(result.get("status", "")).lower(), "none"),  # type: ignore[arg-type]
        _worst([s for s in severities if type(s) is int], texts),
        texts[0] if texts else "",
    )


def _worst(numbers: list[int], texts: list[str]) -> Optional[str]:
    """By what must be done: take away, look, reset, set right, watch."""
    words = [SEVERITY.get(number, "unknown") for number in numbers]
    for word in ("isolate", "triage", "unknown", "reset", "config", "monitor"):
        if word in words:
            return word
    if not words and texts and all(_CONFIG_TEXT.search(text) for text in texts):
        return "config"
    return None


def _entity(result: dict[str, Any]) -> str:
    if "entity_group" in result:
        return f"{result['entity_group']} {result.get('entity_id', '?')}"
    return f"GPU {result['gpu_ids']}" if "gpu_ids" in result else "the node"


def _dicts(value: object) -> list[dict[str, Any]]:
    """The mappings of a list; DCGM 3 puts a null between them."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def diag(facts: Facts) -> Diag:
    """`dcgmi diag` at the site's level; for `facts.once`."""
    level = min(max(facts.site.dcgm_level, 1), 4)
    done = facts.env.run(["dcgmi", "diag", "-r", str(level), "-j"], DIAG_S[level])
    if done.rc == _NOT_FOUND:
        return Diag(why="is not installed", missing=True)
    if done.timed_out:
        return Diag(why=f"no answer within {DIAG_S[level]:.0f} s")
    return parse_diag(done.out)


@dataclass(frozen=True)
class Health:
    """What DCGM's background watches saw.

    Attributes:
        overall: Healthy, Warning, Failure; None: no answer, and `why`.
        texts: what it says of single GPUs.
        off: nobody switched the watches on, or there is no DCGM.
    """

    overall: Optional[str]
    texts: tuple[str, ...] = ()
    why: str = ""
    off: bool = False


def parse_health(text: str) -> Health:
    """The JSON of `dcgmi health -c -j`."""
    said = _object(text)
    body = said.get("body") if said else None
    overall = body.get("Overall Health") if isinstance(body, dict) else None
    value = overall.get("value") if isinstance(overall, dict) else None
    if value not in ("Healthy", "Warning", "Failure"):
        return Health(None, why="an answer of a form that nobody knows")
    return Health(value, tuple(_texts(body))[:8])


def _texts(node: object, depth: int = 0) -> Iterator[str]:
    """Every sentence below a node of the tree: a value with a blank in it."""
    if isinstance(node, dict) and depth < 12:
        for key, child in node.items():
            if key == "value" and isinstance(child, str) and " " in child.strip():
                yield child.strip()
            else:
                yield from _texts(child, depth + 1)
    elif isinstance(node, list) and depth < 12:
        for child in node:
            yield from _texts(child, depth + 1)


def health(facts: Facts) -> Health:
    """`dcgmi health`; for `facts.once`."""
    done = facts.env.run(["dcgmi", "health", "-c", "-j"], HEALTH_S)
    if done.rc == _NOT_FOUND:
        return Health(None, why="has no dcgmi", off=True)
    if "not enabled" in done.out + done.err:
        return Health(None, why="has the health watches of DCGM switched off", off=True)
    if done.timed_out:
        return Health(None, why=done.reason)
    return parse_health(done.out)
