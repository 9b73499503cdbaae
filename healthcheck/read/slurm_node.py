"""What Slurm believes of this node: GPUs, CPUs, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from muster.slurm import fields

if TYPE_CHECKING:
    from healthcheck.facts import Facts

_LIMIT_S = 3.0


def slurm_node(facts: Facts) -> Optional[dict[str, str]]:
    """The fields of `scontrol show node`; None: Slurm does not answer. For `facts.once`.

    Never asked in a prolog or epilog, where scontrol can wait for the node that waits for it.
    """
    if facts.when in ("prolog", "epilog"):
        return None
    done = facts.env.run(["scontrol", "show", "node", facts.node], _LIMIT_S)
    found = fields(done.out) if done.ok else {}
    return found if found.get("NodeName") == facts.node else None
