"""What a person changes at a restart: settings of the recipe, and the checkpoint to go on from.

A recipe may say what its settings are (`Run.note_settings`); the supervisor compares those of an
attempt with those of the attempt before and writes the difference into the journal. `muster run
--from-step` goes back to a checkpoint that a person has chosen, once for each job.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from muster.errors import DataError
from resume import checkpoint
from resume.durable import read_json
from resume.run import settings_file

if TYPE_CHECKING:
    from resume.supervisor import Supervisor


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """{key: [old, new]} of all keys that differ; None for a key that is not there."""
    keys = sorted(before.keys() | now.keys())
    pairs = {key: [before.get(key), now.get(key)] for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def read(run_dir: Path, attempt: int) -> Optional[dict[str, Any]]:
    """Settings of an attempt; None: it did not say."""
    found = read_json(settings_file(run_dir, attempt))
    return found if isinstance(found, dict) else None


def note_changes(s: Supervisor, attempt: int, first_step: int) -> bool:
    """Write down which settings are others than before; True: some are.

    To be called before the journal has the `first_step` of the attempt. Attempts that did not come
    to a training step do not count: what they were to change, the next one changes.
    """
    now, then = read(s.run_dir, attempt), read(s.run_dir, s.state.stepped_in)
    changes = difference(then, now) if now is not None and then is not None else {}
    if changes:
        facts = {"attempt": attempt, "step": first_step, "changes": changes, "user": user()}
        s.note("changed", **facts, job=s.job.job_id)
        shown = ", ".join(f"{key} from {old} to {new}" for key, (old, new) in changes.items())
        s.say(f"changed from training step {first_step} on: {shown}")
    return bool(changes)


def of_these_settings(
    lines: Iterable[Mapping[str, Any]], changed_in: int, resume_step: int
) -> list[Mapping[str, Any]]:
    """Lines of metrics.jsonl that the next losses may be compared with.

    Args:
        lines: of all attempts.
        changed_in: the last attempt whose settings were others than before; 0: none.
        resume_step: up to there the weights are the same, whatever was changed since.
    """
    return [
        line
        for line in lines
        if int(line.get("attempt", 0)) >= changed_in or int(line.get("step", 0)) <= resume_step
    ]


def go_back(s: Supervisor) -> None:
    """To the checkpoint that a person has chosen for this job; later ones are set aside.

    Raises:
        DataError: there is no such checkpoint, or it does not verify.
    """
    step = s.from_step
    if step is not None and s.state.chosen_for != s.job.job_id:
        _choose(s, step)
    # First the word, then the act: this is done again by whoever comes before the next attempt.
    if s.state.reopened and s.done_file.exists():
        s.done_file.rename(_free_name(s.done_file))


def _choose(s: Supervisor, step: int) -> None:
    folder = s.run_dir / "checkpoints"
    published = dict(checkpoint.published(folder))
    where = f"--from-step {step}"
    if step not in published:
        there = ", ".join(str(number) for number in sorted(published)) or "none"
        what = f"there is no checkpoint of that training step in {folder}"
        raise DataError(where, what, f"use one of: {there}")
    problems = s.in_background(lambda: checkpoint.verify(published[step]))
    if problems:
        raise DataError(where, f"it does not verify: {problems[0]}", "choose another one")
    later = sorted(
        number for number in {*published, *s.state.verified, *s.state.archived} if number > step
    )
    s.note(
        "checkpoint_chosen",
        to_step=step,
        checkpoints=[checkpoint.step_name(number) for number in later],
        commands=[command.name for command in s.recipe.commands if command.done_by == "DONE"],
        user=user(),
        job=s.job.job_id,
    )
    s.say(f"goes on from training step {step}, as asked for; later checkpoints are set aside")


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


def user() -> str:
    """Who has submitted the job."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user that this node does not know by name
        return str(os.getuid())
