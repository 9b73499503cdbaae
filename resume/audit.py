"""Was every sample trained on exactly once? Proven from journal.jsonl and metrics.jsonl alone.

What counts is the effective history: the training steps whose effect is in the weights now. It is
read backwards. The newest attempt began at a checkpoint; the attempt that published it trained the
steps before, back to the checkpoint that one began at, and so on to the start. Steps of attempts
beyond the checkpoint that was resumed from were lost, and are not in the weights.

Pure from `audit` down: parsed lines in, an `Audit` out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from muster.errors import DataError
from resume import in_effect, journal, skips
from resume.durable import read_lines
from resume.places import misplaced, place_of, sizes_of

_SHOWN = 5


@dataclass(frozen=True)
class Segment:
    """Training steps `first` to `last` of one attempt that are in the weights; may be empty."""

    attempt: int
    first: int
    last: int


@dataclass(frozen=True)
class Audit:
    """What was found; no problems: proven."""

    done: bool
    last_step: int
    num_batches: int  # trained, each once
    sizes: tuple[tuple[int, int, int], ...]  # first and last training step, samples of their batch
    segments: tuple[Segment, ...]
    num_lost: int  # lines of training steps that were trained, lost, and trained again
    skipped: tuple[tuple[int, int], ...]  # batches that were left out on purpose
    changes: tuple[in_effect.Change, ...] = ()  # settings, where they are others than before
    problems: tuple[str, ...] = field(default=())

    @property
    def proven(self) -> bool:
        """Every sample exactly once, but for those that were skipped on purpose."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "proven": self.proven,
            "done": self.done,
            "last_step": self.last_step,
            "num_batches": self.num_batches,
            "sizes": [list(row) for row in self.sizes],
            "segments": [[s.attempt, s.first, s.last] for s in self.segments],
            "num_lost": self.num_lost,
            "skipped": [list(window) for window in self.skipped],
            "changes": [list(change) for change in self.changes],
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """For people."""
        state = "done" if self.done else "not done yet"
        lines = [f"{self.last_step} training steps, {state}"]
        lines += [
            f"attempt {s.attempt}: training steps {_range(s.first, s.last)}"
            for s in self.segments
            if s.last >= s.first
        ]
        if len(self.sizes) > 1:
            lines += [f"training steps {_range(a, b)}: {n} samples each" for a, b, n in self.sizes]
        lines += [f"changed from training step {n} on: {_pairs(new)}" for n, new in self.changes]
        if self.num_lost:
            lines.append(f"trained, lost and trained again: {self.num_lost} training steps")
        lines += [f"skipped on purpose: batches {_range(*window)}" for window in self.skipped]
        if self.proven:
            lines.append(f"proven: each sample of {self.num_batches} batches exactly once")
        else:
            lines += [f"not proven: {problem}" for problem in self.problems]
        return "\n".join(lines)


def read(run_dir: Path) -> Audit:
    """The audit of a run's folder.

    Raises:
        DataError: there is no journal or no metrics.
    """
    entries = journal.read(run_dir / "journal.jsonl")
    metrics = read_lines(run_dir / "metrics.jsonl")
    for name, lines in (("journal.jsonl", entries), ("metrics.jsonl", metrics)):
        if not lines:
            what = f"{name} is missing or empty"
            raise DataError(str(run_dir), what, "name the RUN_DIR of a run that has trained")
    return audit(entries, metrics, done=(run_dir / "DONE").exists())


def audit(
    entries: Sequence[dict[str, Any]], metrics: Iterable[dict[str, Any]], *, done: bool
) -> Audit:
    """Compare what is in the weights with what should be.

    Args:
        entries: of journal.jsonl.
        metrics: lines of metrics.jsonl, all attempts.
        done: whether DONE is there.
    """
    lines = _by_attempt(metrics)
    problems: list[str] = []
    segments = _segments(entries, lines, problems)
    windows = skips.fold(entries)
    history = _history(segments, lines, problems)
    _check_batches(history, windows, problems)
    gaps, overlaps = misplaced(history, windows)
    if gaps:
        problems.append(f"samples are left out before batches {_list(gaps)}")
    if overlaps:
        problems.append(f"samples of the batch before again in batches {_list(overlaps)}")
    _check_samples(history, lines, windows, problems)
    trained = tuple(s for s in segments if s.last >= s.first)
    changes = in_effect.changes(entries, [(s.attempt, s.first) for s in trained])
    problems += [
        f"another optimizer from training step {change[0]} on, but its state begins at {began}"
        for change in changes
        if (began := in_effect.wrong_state(change)) is not None
    ]
    last_step = max((s.last for s in segments), default=0)
    all_lines = sum(len(found) for steps in lines.values() for found in steps.values())
    return Audit(
        done=done,
        last_step=last_step,
        num_batches=len(history),
        sizes=sizes_of(history),
        segments=trained,
        num_lost=max(0, all_lines - len(history)),
        skipped=tuple(windows),
        changes=changes,
        problems=tuple(problems),
    )


Lines = dict[int, dict[int, list[dict[str, Any]]]]
"""attempt -> training step -> its lines."""


def _by_attempt(metrics: Iterable[dict[str, Any]]) -> Lines:
    lines: Lines = defaultdict(lambda: defaultdict(list))
    for line in metrics:
        step, attempt = line.get("step"), line.get("attempt")
        if isinstance(step, int) and isinstance(attempt, int):
            lines[attempt][step].append(line)
    return lines


def _segments(
    entries: Iterable[dict[str, Any]], lines: Lines, problems: list[str]
) -> list[Segment]:
    """The effective history, oldest first."""
    started = {int(e["attempt"]): e for e in entries if e["event"] == "attempt_started"}
    found: list[Segment] = []
    current: Optional[int] = max(started, default=None)
    last = max(lines.get(current, {}), default=0) if current is not None else 0
    while current is not None:
        resumed = int(started[current]["resume_step"])
        found.append(Segment(current, resumed + 1, max(last, resumed)))
        if resumed == 0:
            break
        publisher = started[current].get("resume_attempt")
        current, last = _publisher(resumed, current, publisher, started, lines), resumed
        if current is None:
            problems.append(f"training steps 1-{resumed} are not of this run: nobody trained them")
    return found[::-1]


def _publisher(
    step: int, before: int, told: Optional[int], started: dict[int, Any], lines: Lines
) -> Optional[int]:
    """The attempt that trained up to a checkpoint: as its manifest says, else the latest it can be.

    A number that is not below that of the attempt which resumed from it would be of another run.
    """
    if told is not None and told < before and told in started:
        return told
    able = [a for a, e in started.items() if a < before and int(e["resume_step"]) < step]
    return max((a for a in able if step in lines.get(a, {})), default=None)


def _history(
    segments: Iterable[Segment], lines: Lines, problems: list[str]
) -> list[tuple[int, dict[str, Any]]]:
    """(training step, its line) of all that is in the weights."""
    history = []
    for segment in segments:
        of_attempt = lines.get(segment.attempt, {})
        steps = range(segment.first, segment.last + 1)
        missing = [step for step in steps if step not in of_attempt]
        doubled = [step for step in steps if len(of_attempt.get(step, ())) > 1]
        where = f"attempt {segment.attempt}: metrics.jsonl"
        if missing:
            problems.append(f"{where} has no line for training steps {_list(missing)}")
        if doubled:
            problems.append(f"{where} has several lines for training steps {_list(doubled)}")
        history += [(step, of_attempt[step][0]) for step in steps if step in of_attempt]
    return history


def _check_batches(
    history: Sequence[tuple[int, dict[str, Any]]],
    windows: Sequence[tuple[int, int]],
    problems: list[str],
) -> None:
    """The batches of the data order, each exactly once, but for the windows."""
    if windows and any("batch" not in line for _, line in history):
        problems.append("data was skipped, but lines of metrics.jsonl do not name their batch")
        return
    trained = Counter(int(line.get("batch", step)) for step, line in history)
    doubled = sorted(batch for batch, count in trained.items() if count > 1)
    skipped = {b for first, last in windows for b in range(first, last + 1)}
    missing = sorted(set(range(1, max(trained, default=0) + 1)) - set(trained) - skipped)
    if doubled:
        problems.append(f"trained on more than once: batches {_list(doubled)}")
    if missing:
        problems.append(f"not trained on: batches {_list(missing)}")
    against = sorted(skipped & set(trained))
    if against:
        problems.append(f"to be skipped, but trained on: batches {_list(against)}")


def _check_samples(
    history: Sequence[tuple[int, dict[str, Any]]],
    lines: Lines,
    windows: Sequence[tuple[int, int]],
    problems: list[str],
) -> None:
    """One batch has the same samples in every attempt, and shares them with no other batch."""
    silent = [step for step, line in history if not line.get("samples")]
    if silent:
        problems.append(f"no digest of the samples at training steps {_list(silent)}")
    seen: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for steps in lines.values():
        for step, found in steps.items():
            for line in found:
                if line.get("samples") and (not windows or "batch" in line):
                    key = (int(line.get("batch", step)), *place_of(line))
                    seen[key].add(str(line["samples"]))
    unlike = sorted({key[0] for key, digests in seen.items() if len(digests) > 1})
    if unlike:
        problems.append(f"attempts saw other samples in batches {_list(unlike)}")
    users: dict[str, list[int]] = defaultdict(list)
    for step, line in history:
        if line.get("samples"):
            users[str(line["samples"])].append(step)
    shared = sorted(step for steps in users.values() if len(steps) > 1 for step in steps)
    if shared:
        problems.append(f"the same samples at training steps {_list(shared)}")


def _pairs(pairs: dict[str, list[Any]]) -> str:
    return ", ".join(f"{key} from {old} to {new}" for key, (old, new) in pairs.items())


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _list(numbers: Sequence[int]) -> str:
    """1-4, 7: neighbours joined, the first few."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [_range(first, last) for first, last in ranges[:_SHOWN]]
    more = len(ranges) - len(shown)
    return ", ".join(shown) + (f" and {more} more places" if more else "")
