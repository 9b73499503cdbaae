"""Panels about incidents: a box that tells what happened, a bar per recovery with its phases."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from resume.report.incidents import Incident
from resume.report.marks import BLUE, GREEN, ORANGE, RED, SKY, YELLOW, badge, legend
from resume.report.summary import Summary
from resume.report.words import name_incident, outcome, phase_figures, seconds

PHASES = (
    ("detect_s", "detect", ORANGE),
    ("decide_s", "decide", YELLOW),
    ("launch_s", "launch", SKY),
    ("first_step_s", "first training step", BLUE),
)
MAX_CALLOUTS = 4  # more do not fit side by side; then the rows of the recoveries say it
_MAX_ROWS = 12


def phases_shown(summary: Summary) -> tuple[Incident, ...]:
    """All incidents, or the longest recoveries when there are too many to read."""
    incidents = summary.incidents
    if len(incidents) <= MAX_CALLOUTS:  # then a box says what has no phases
        return tuple(incident for incident in incidents if incident.phases is not None)
    if len(incidents) <= _MAX_ROWS:
        return incidents
    ranked = sorted(
        incidents, key=lambda i: (i.recovered, -(i.phases.total_s if i.phases else 0.0))
    )
    chosen = {incident.number for incident in ranked[:_MAX_ROWS]}
    return tuple(incident for incident in incidents if incident.number in chosen)


def callout_lines(summary: Summary) -> list[tuple[list[str], list[str]]]:
    """For each incident its name and what was done, broken into lines that fit its box."""
    letters = int(_callout_width(summary) * 1158 / 6.5) - 8
    return [
        (
            textwrap.wrap(name_incident(incident), letters)[:3],
            _cut(textwrap.wrap(f"→ {outcome(incident)}", letters), 4),
        )
        for incident in summary.incidents
    ]


def _callout_width(summary: Summary) -> float:
    return min(1 / len(summary.incidents), 0.5)


def draw_callouts(strip: Axes, summary: Summary, inches: float) -> None:
    """A box per incident, side by side in order of time, with the number it has in the loss."""
    strip.set_axis_off()
    strip.set_xlim(0, 1)
    strip.set_ylim(inches, 0)
    width = _callout_width(summary)
    for i, (name, done) in enumerate(callout_lines(summary)):
        incident = summary.incidents[i]
        left = i * width
        colour = GREEN if incident.recovered else RED
        strip.add_patch(_frame((left + 0.003, 0.01), width - 0.006, inches - 0.02, colour))
        badge(strip, left + 0.019, 0.18, incident)
        text: dict[str, Any] = {"va": "top", "fontsize": 9.5, "linespacing": 1.25}
        strip.text(left + 0.034, 0.10, "\n".join(name), fontweight="bold", **text)
        strip.text(left + 0.034, 0.10, "\n" * len(name) + "\n".join(done), **text)


def _frame(corner: tuple[float, float], width: float, height: float, colour: str) -> Patch:
    return Rectangle(corner, width, height, facecolor="#fafafa", edgecolor=colour, linewidth=1.5)


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1] + " …"]


def draw_phases(axes: Axes, incidents: Sequence[Incident], *, words: bool) -> None:
    """A stacked bar per recovery; `words`: also what was done, where no box above says it."""
    axes.set_title("Recoveries", pad=8)
    longest = max((i.phases.total_s for i in incidents if i.phases is not None), default=1.0) or 1.0
    axes.set_xlim(0, longest * 1.2)
    axes.set_ylim(len(incidents) - 0.25, -0.75)
    axes.set_yticks([i + 0.12 for i in range(len(incidents))], [str(i.number) for i in incidents])
    for label in axes.get_yticklabels():
        label.set_color(RED)
        label.set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds from the fault (or the last training step) to training again")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    for row, incident in enumerate(incidents):
        _phase_row(axes, row, incident, longest, words=words)
    legend(axes, [Patch(color=colour, label=label) for _, label, colour in PHASES])


def _phase_row(axes: Axes, row: int, incident: Incident, longest: float, *, words: bool) -> None:
    left = 0.0
    for field, _, colour in PHASES:
        length = 0.0 if incident.phases is None else getattr(incident.phases, field)
        axes.barh(row + 0.18, length, left=left, height=0.36, color=colour, edgecolor="white",
                  linewidth=0.4)  # fmt: skip
        left += length
    name = name_incident(incident)
    if incident.phases is not None:
        axes.text(left + 0.01 * longest, row + 0.18, seconds(left), va="center", fontsize=9)
    text = f"{name} → {outcome(incident)}" if words else phase_figures(incident)
    axes.text(
        0, row - 0.22, textwrap.shorten(text, 104, placeholder=" …"), va="center", fontsize=8.5
    )
