"""`muster check --list`: every check, from the code itself; also the table of the reference page.

python3 -m healthcheck.catalogue > docs/reference/health_checks.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from healthcheck.policy import POLICY
from healthcheck.policy.rule import Rule
from healthcheck.registry import ALL_BUT_PAIR, LIMIT_S, MODES, Check, discover

_HEAD = """\
# Health checks

All checks of `muster check`, written from the code by `python3 -m healthcheck.catalogue`. What a
failure means for the node comes from one table, `healthcheck/policy`: only class hardware, and
network with an action, ever drains a node by itself.
[Options, statuses and profiles](check.md), [how to use them](../how-to/health_gate.md).
"""
_RULES = """\

## Rules

A finding names the rule that applied: the check, a dot, and the case. The number of an Xid or SXid
may stand between, and where it has no row of its own the row without the number applies.

| rule | class | action | fix |
|---|---|---|---|
"""


def about(check: Check) -> str:
    """The first sentence of a check's docstring, on one line."""
    text = inspect.getdoc(check.function) or ""
    return " ".join(text.partition("\n\n")[0].split())


def modes(check: Check) -> str:
    """The modes that it belongs to, in order; all: but `pair`."""
    if check.when == frozenset(ALL_BUT_PAIR):
        return "all"
    return ", ".join(mode for mode in MODES if mode in check.when)


def rules(check: Check) -> dict[str, Rule]:
    """The rows of the policy table that are this check's."""
    return {name: rule for name, rule in POLICY.items() if name.partition(".")[0] == check.name}


def lines() -> Iterator[str]:
    """For people: every check with its modes and what is done when it fails."""
    for check in discover():
        done = sorted({f"{rule.class_}: {rule.action}" for rule in rules(check).values()})
        yield f"{check.name} ({modes(check)}): {about(check)}"
        yield f"    {', '.join(done)}"


def page() -> str:
    """The reference page."""
    found = discover()
    limits = ", ".join(f"`{mode}` {LIMIT_S[mode]:g} s" for mode in MODES)
    table = ["\n| check | passes when | modes |\n|---|---|---|\n"]
    table += [f"| `{check.name}` | {about(check)} | {modes(check)} |\n" for check in found]
    known = [row for check in found for row in rules(check).items()]
    rows = [f"| `{name}` | {r.class_} | {r.action} | {_fix(r)} |\n" for name, r in known]
    head = f"{_HEAD}\nLongest run: {limits}. All modes: all but `pair`.\n"
    return "".join([head, *table, _RULES, *rows])


def _fix(rule: Rule) -> str:
    return rule.fix.format(node="NODE").replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
