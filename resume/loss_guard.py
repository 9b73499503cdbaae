"""Is the loss what it should be? Three questions, asked of every line of metrics.jsonl.

    diverged       the loss is not finite
    loss_mismatch  the first losses after a resume are not those that an earlier attempt saw at the
                   same training steps, on the same data: the state that was loaded is not the one
                   that was saved
    loss_spike     the loss is far above what it was, for some training steps in a row

and the plan for going back: behind which checkpoint, and which data to leave out then. Off unless
recipe.yaml says `loss_guard: {action: rollback}`. Pure: no file, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Optional

from muster.recipe import LossGuard
from resume import skips
from resume.checkpoint import step_name

_COMPARED = 3  # losses after a resume that are compared with those of before
_USUAL = 100  # losses that tell what is usual
_ENOUGH = 20  # fewer tell nothing


@dataclass(frozen=True)
class Finding:
    """What is wrong with the loss, and where it began."""

    cause: str  # diverged, loss_spike, loss_mismatch
    why: str
    first: int  # training step where it began
    last: int  # farthest training step that the attempt has reached

    @property
    def data_is_suspect(self) -> bool:
        """Whether the data of these training steps is to be left out."""
        return self.cause != "loss_mismatch"


@dataclass
class LossWatch:
    """Follows the losses of one attempt."""

    rules: LossGuard
    resume_step: int
    before: Mapping[int, float] = field(default_factory=dict)
    """{training step: loss} of earlier attempts, where they took the same batch."""
    _usual: list[float] = field(default_factory=list)
    _high: list[int] = field(default_factory=list)  # training steps in a row above the limit
    _compared: int = 0

    def __post_init__(self) -> None:
        """What was usual before the resume is usual after it."""
        steps = sorted(step for step in self.before if step <= self.resume_step)
        self._usual = [self.before[s] for s in steps if math.isfinite(self.before[s])][-_USUAL:]

    def compare_no_more(self) -> None:
        """The settings have changed: the losses of before are no measure for these."""
        self._compared = _COMPARED

    def take(self, step: int, loss: float) -> Optional[Finding]:
        """One more training step; a finding when the attempt should not go on."""
        if not math.isfinite(loss):
            return Finding("diverged", f"loss {loss} at training step {step}", step, step)
        return self._mismatch(step, loss) or self._spike(step, loss)

    def _mismatch(self, step: int, loss: float) -> Optional[Finding]:
        was = self.before.get(step)
        if self._compared >= _COMPARED or was is None or self.resume_step == 0:
            return None
        self._compared += 1
        if abs(loss - was) <= self.rules.resume_rtol * abs(was):
            return None
        why = (
            f"loss {loss:.6g} at training step {step} after the resume from training step "
            f"{self.resume_step}, {was:.6g} before it"
        )
        return Finding("loss_mismatch", why, self.resume_step, step)

    def _spike(self, step: int, loss: float) -> Optional[Finding]:
        usual = median(self._usual) if len(self._usual) >= _ENOUGH else None
        if usual is None or usual <= 0 or loss <= self.rules.spike_factor * usual:
            self._usual = [*self._usual[-_USUAL + 1 :], loss]
            self._high = []
            return None
        self._high.append(step)
        if len(self._high) < self.rules.spike_steps:
            return None
        why = f"loss {loss:.6g} at training step {step}, {usual:.6g} is usual"
        return Finding("loss_spike", why, self._high[0], step)


def comparable(
    lines: Iterable[Mapping[str, Any]], windows: Sequence[skips.Window]
) -> dict[int, float]:
    """{training step: loss} of earlier attempts that took the batch which would be taken now.

    Windows only grow, so the same batch at the same training step means the same data before it.
    Of several lines the newest counts.
    """
    found: dict[int, float] = {}
    for line in lines:
        step, loss = line.get("step"), line.get("loss")
        if not isinstance(step, int) or not isinstance(loss, (int, float)):
            continue
        if line.get("batch", step) == skips.batch_of(step, windows) and math.isfinite(loss):
            found[step] = float(loss)
    return found


@dataclass(frozen=True)
class Plan:
    """How far back, and what to leave out."""

    to_step: int  # training step of the checkpoint to go on from
    aside: tuple[str, ...]  # checkpoints that must not be resumed from any more
    skip: str  # windows of batches, as in MUSTER_SKIP; empty: none


def plan(
    finding: Finding,
    published: Iterable[int],
    rules: LossGuard,
    windows: Sequence[skips.Window],
) -> Optional[Plan]:
    """The way back, or None when there is no checkpoint to go back to.

    Args:
        finding: what is wrong.
        published: training steps of all checkpoints that there are.
        rules: of the recipe.
        windows: batches that are left out already.
    """
    steps = sorted(set(published), reverse=True)
    before = [step for step in steps if step < finding.first]
    if not before:
        return None
    back = rules.back if finding.data_is_suspect else 1
    target = before[min(back, len(before)) - 1]
    aside = tuple(step_name(step) for step in steps if step > target)
    skip = ""
    if finding.data_is_suspect:
        first, last = target + 1, max(finding.first, finding.last)
        skip = skips.text([(skips.batch_of(first, windows), skips.batch_of(last, windows))])
    return Plan(target, aside, skip)
