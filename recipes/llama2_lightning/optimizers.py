"""The optimizers that `optim.kind` chooses from, and what becomes of their state at a restart.

All are torch's own, and work on sharded weights element by element. A run may go on with another
one: the weights stay, and the new optimizer's state begins anew, for that of one kind means nothing
to another. Each counts the updates since then, not the training steps of the run.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from config import Optim

STATE = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "radam": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}
"""Tensors for each weight, of its shape and zero before the first update, by kind of optimizer."""


def make_optimizer(options: Optim, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Matrices decay, norms do not."""
    weights = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.dim() > 1]},
        {"params": [p for p in weights if p.dim() == 1], "weight_decay": 0.0},
    ]
    rate: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
    betas = (options.beta1, options.beta2)
    if options.kind == "sgd":
        return torch.optim.SGD(groups, momentum=options.beta1, foreach=True, **rate)
    if options.kind == "radam":
        more: dict[str, Any] = {"decoupled_weight_decay": True, "foreach": True}
        return torch.optim.RAdam(groups, betas=betas, eps=options.eps, **more, **rate)
    return torch.optim.AdamW(groups, betas=betas, eps=options.eps, fused=True, **rate)


def state_of(
    optimizer: torch.optim.Optimizer, name: str, parameter: Tensor
) -> dict[str, dict[str, Tensor]]:
    """{"KIND.SLOT.NAME": tensor} of one weight; created where it is missing."""
    kind = type(optimizer).__name__.lower()
    slots = optimizer.state[parameter]
    if not slots:
        # Counted where the optimizer reads it: a fused one on the device, the others here.
        device = parameter.device if optimizer.defaults.get("fused") else "cpu"
        slots["step"] = torch.zeros((), device=device)
        slots |= {slot: torch.zeros_like(parameter) for slot in STATE[kind]}
    return {f"{kind}.{slot}.{name}": slots[slot] for slot in STATE[kind]}


def began_at(saved: dict[str, Any], kind: str) -> int:
    """Training step of the run after which the optimizer's state begins: 0, or a change of kind.

    Args:
        saved: what the checkpoint says about itself; older ones say nothing of their optimizer.
        kind: of the optimizer that goes on.
    """
    was = saved.get("optimizer") or {"kind": "adamw", "began_at": 0}
    return int(was["began_at"] if was["kind"] == kind else saved["step"])
