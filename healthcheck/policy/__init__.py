"""The one table from what was found to whose fault it is and what is done about it.

Class decides who acts: only `hardware` ever drains a node by itself. Action decides what
`muster watch` does with a node that was drained: `reset` and `reboot` reboot it, `replace` replaces
it, `drain` and `none` leave it to a person. Keys are check names, or `check.case` where one check
can fail in ways that need different answers. The rows stand by domain in the modules of this
package; each gives its own as RULES.
"""

from __future__ import annotations

import re

from healthcheck.finding import Finding, Result, plain
from healthcheck.policy import deep, fabric, faults, gpu, host, storage
from healthcheck.policy.rule import Rule

SECTIONS = (gpu, faults, host, storage, fabric, deep)

POLICY: dict[str, Rule] = {}
for _section in SECTIONS:
    POLICY.update(_section.RULES)

_ANY = "any"
POLICY[_ANY] = Rule("software", "none", "run 'muster check' on the node to see more")


def row(rule: str) -> str:
    """The key of the row for a rule.

    Where rules carry a number, such as sxid.20034.fatal, there is a row for that one, or for all
    (sxid.fatal), or for the number whatever its word. A rule without a row never touches a node.
    """
    general = re.sub(r"\.[0-9]+", "", rule)
    if general == rule:
        return rule if rule in POLICY else _ANY
    candidates = (rule, general, rule.rpartition(".")[0], general.partition(".")[0])
    return next((key for key in candidates if key in POLICY), _ANY)


def judge(check: str, result: Result, node: str) -> Finding:
    """The finding that a result of `check` makes; a rule without a row never touches a node."""
    rule = POLICY[row(result.rule or check)]
    return Finding(
        check=check,
        status=result.status,
        class_=rule.class_,
        action=rule.action if result.status == "FAIL" else "none",
        detail=plain(result.detail),
        fix=rule.fix.format(node=node),
        gpu=plain(result.gpu, 80) if result.gpu else None,
        rule=result.rule or check,
        time=result.time,
        value=result.value,
        checksum=result.checksum,
    )
