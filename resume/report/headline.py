"""The conclusion of a report in a sentence, and what it may claim about the losses. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from resume.report.words import count, name_incident, outcome, seconds

if TYPE_CHECKING:  # a summary says its own headline
    from resume.report.summary import Summary


def headline(summary: Summary) -> str:
    """The conclusion, in one sentence."""
    incidents = summary.incidents
    recovered = sum(incident.recovered for incident in incidents)
    step = "" if summary.last_step is None else f" at training step {summary.last_step:,}"
    if not incidents:
        story = "no incident"
    else:
        story = f"{recovered} of {count(len(incidents), 'incident')} recovered"
    end = {"done": "complete", "stopped": "stopped", "going on": "still going on"}
    text = f"{summary.recipe}: {story}, {end[summary.outcome]}{step}"
    if summary.loss_identical:
        return f"{text}, every loss equal bit for bit"
    if summary.baseline is not None and summary.baseline.num_different:
        return f"{text}, but losses DIFFER"
    if summary.repeated.losses_identical is False:
        return f"{text}, but repeated losses DIFFER"
    return text


def subline(summary: Summary) -> str:
    """The figures below the conclusion."""
    ettr = "unknown" if summary.ettr is None else f"{summary.ettr:.1%}"
    parts = [
        f"{seconds(summary.wall_s)} wall-clock time",
        f"ETTR {ettr}",
        count(len(summary.attempts), "attempt"),
    ]
    if summary.mttr_s is not None:
        parts.append(f"back after {seconds(summary.mttr_s)} on average")
    if summary.incidents:
        parts.append(f"{count(summary.lost_steps, 'training step')} lost and done again")
    if summary.records.replaced:
        parts.append(f"{count(len(summary.records.replaced), 'node')} replaced")
    return " · ".join(parts)


def verdict_on_losses(summary: Summary) -> tuple[str, Optional[bool]]:  # noqa: PLR0911  (a table)
    """What the comparison of the losses computed; None: nothing was compared."""
    base, again = summary.baseline, summary.repeated
    if base is not None:
        if summary.loss_identical:
            return (
                "every loss equal bit for bit to the uninterrupted run "
                f"({base.num_compared} compared)"
            ), True
        if base.num_different:
            return f"{base.num_different} losses differ; first at {base.first_difference}", False
        if again.losses_identical is False:
            return f"repeated losses differ; first at {again.first_difference}", False
        if base.num_compared:
            return (
                "equal bit for bit where both have the training step "
                f"({base.num_compared} compared,"
                f" {base.num_missing} only in one run)"
            ), None
        return "no training step in common with the uninterrupted run", False
    if again.losses_identical is None:
        return "no training step was done twice; nothing to compare", None
    if again.losses_identical:
        return f"{again.num_compared} training steps done again: all equal bit for bit", True
    return f"{again.num_different} repeated losses differ; first at {again.first_difference}", False


def terminal_text(summary: Summary) -> str:
    """The report in a few lines: conclusion, figures, a line per incident, losses."""
    incidents = [f"  {i.number}  {name_incident(i)} → {outcome(i)}" for i in summary.incidents]
    losses, _ = verdict_on_losses(summary)
    return "\n".join([headline(summary), subline(summary), *incidents, losses])
