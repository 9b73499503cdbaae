"""Are two losses the same? Bit for bit, or where they differ first. Pure: data to data.

JSON keeps every bit of a double (Python writes the shortest text that reads back as the same
number), so equal bits in the files mean equal losses in training.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Optional

from resume.report.reading import Step

Key = tuple[int, int]
"""(which of the job's commands, training step)"""


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing training steps pair by pair."""

    num_compared: int = 0  # pairs of losses
    num_different: int = 0
    first_difference: Optional[str] = None  # a sentence
    num_samples_compared: int = 0
    num_samples_different: int = 0
    num_missing: int = 0  # training steps that only one of the two runs has

    @property
    def losses_identical(self) -> Optional[bool]:
        """None: there was nothing to compare."""
        return self.num_different == 0 if self.num_compared else None

    @property
    def samples_identical(self) -> Optional[bool]:
        """None: there was nothing to compare."""
        return self.num_samples_different == 0 if self.num_samples_compared else None


def same_bits(one: float, other: float) -> bool:
    """Equality of all 64 bits: tells 0.0 from -0.0 and finds nan equal to itself."""
    return struct.pack(">d", one) == struct.pack(">d", other)


def by_step(steps: Iterable[Step], stages: Mapping[int, int]) -> dict[Key, Step]:
    """The last line of every training step."""
    return {(stages.get(step.attempt, 0), step.step): step for step in steps}


def compare_repeated(
    steps: Iterable[Step], stages: Mapping[int, int], changed_in: Collection[Optional[int]] = ()
) -> Comparison:
    """Every training step that was done more than once: each time against the first time.

    Args:
        steps: lines of metrics.jsonl.
        stages: attempt to which of the job's commands it ran.
        changed_in: attempts that began with other settings; those before are no measure for them.
    """
    first: dict[tuple[int, int, int], Step] = {}
    pairs = []
    for step in steps:
        settings = sum(number is not None and number <= step.attempt for number in changed_in)
        key = (stages.get(step.attempt, 0), settings, step.step)
        earlier = first.setdefault(key, step)
        if earlier is not step:
            pairs.append((earlier, step, f"attempt {earlier.attempt}", f"attempt {step.attempt}"))
    return _compare(pairs)


def compare_runs(
    steps: Iterable[Step],
    stages: Mapping[int, int],
    baseline: Iterable[Step],
    baseline_stages: Mapping[int, int],
) -> Comparison:
    """Every line of a run, lost ones too, against the uninterrupted run."""
    wanted = by_step(baseline, baseline_stages)
    pairs, mine = [], set()
    for step in steps:
        key = (stages.get(step.attempt, 0), step.step)
        mine.add(key)
        if key in wanted:
            pairs.append((wanted[key], step, "the uninterrupted run", f"attempt {step.attempt}"))
    return _compare(pairs, missing=len(mine ^ set(wanted)))


def _compare(pairs: Iterable[tuple[Step, Step, str, str]], missing: int = 0) -> Comparison:
    compared = different = samples = samples_different = 0
    first = None
    for one, other, name_one, name_other in pairs:
        if one.samples is not None and other.samples is not None:
            samples += 1
            samples_different += one.samples != other.samples
        if one.loss is None or other.loss is None:
            continue
        compared += 1
        if not same_bits(one.loss, other.loss):
            different += 1
            first = first or (
                f"training step {one.step}: {one.loss!r} in {name_one}, "
                f"{other.loss!r} in {name_other}"
            )
    return Comparison(compared, different, first, samples, samples_different, missing)
