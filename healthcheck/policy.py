"""The one table from what was found to whose fault it is and what is done about it.

Class decides who acts: only `hardware` ever drains a node by itself. Action decides what
`muster watch` does with a node that was drained: `reset` and `reboot` reboot it, `replace` replaces
it, `drain` and `none` leave it to a person. Keys are check names, or `check.case` where one check
can fail in ways that need different answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.finding import Action, Class, Finding, Result, plain


@dataclass(frozen=True)
class Rule:
    """One row; in `fix` the word {node} is filled in."""

    class_: Class
    action: Action
    fix: str


_BACK = "then 'scontrol update nodename={node} state=resume'"

POLICY: dict[str, Rule] = {
    "nvidia_smi": Rule("software", "reboot", "reboot it ('muster watch' does), " + _BACK),
    "nvidia_smi.hung": Rule("hardware", "reboot", "reboot it ('muster watch' does), " + _BACK),
    "nvidia_smi.hardware": Rule("hardware", "replace", "replace it ('muster watch' does)"),
    "nvidia_smi.fell_off": Rule("hardware", "reboot", "reboot it; again: replace it"),
    "nvidia_smi.missing": Rule(
        "software", "drain", "install the NVIDIA driver, or set profile: cpu in the site file"
    ),
    "gpu_lost": Rule("hardware", "reboot", "reboot it ('muster watch' does); again: replace it"),
    "gpu_count": Rule("hardware", "replace", "replace it ('muster watch' does)"),
    "gpu_count.driver": Rule("hardware", "reboot", "reboot it ('muster watch' does), " + _BACK),
    "gpu_count.more": Rule("configuration", "none", "correct 'gpus' in the profile"),
    "gpu_ecc": Rule("hardware", "reset", "reset the GPU or reboot ('muster watch' does)"),
    "scratch_space": Rule("software", "drain", "delete old files there, or name another disk as"
                          " scratch_path in the site file"),
    "scratch_space.missing": Rule("configuration", "none", "correct scratch_path in the site file"),
    "shared_writable": Rule("storage", "none", "look at the mount and its file server"),
    "shared_writable.denied": Rule("configuration", "none", "choose a folder you may write to"),
    "clock": Rule("configuration", "none", "see 'chronyc tracking' on the node"),
}  # fmt: skip

_ANY = Rule("software", "none", "run 'muster check' on the node to see more")


def judge(check: str, result: Result, node: str) -> Finding:
    """The finding that a result of `check` makes; a rule without a row never touches a node."""
    rule = POLICY.get(result.rule or check, _ANY)
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
    )
