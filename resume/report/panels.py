"""The panels of the picture, one function each; what they draw is decided in the summary."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Optional

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from resume.report.headline import verdict_on_losses
from resume.report.incidents import Incident
from resume.report.lanes import Lane
from resume.report.scale import TimeScale
from resume.report.summary import Summary
from resume.report.thin import thin
from resume.report.words import name_incident, outcome, phase_figures, seconds

INK, QUIET, PALE = "#222222", "#8a8a8a", "#ececec"
BLUE, ORANGE, RED, SKY, GREEN, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#D55E00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
)
# state -> colour, hatch, what the legend says
STATES = {
    "training": (BLUE, "", "training"),
    "starting": (SKY, "", "starting"),
    "waiting": (YELLOW, "", "standing still"),
    "spare": ("#d9d9d9", "", "spare"),
    "lost": (INK, "", "lost"),
    "unfit": (RED, "////", "unfit"),
}
PHASES = (
    ("detect_s", "detect", ORANGE),
    ("decide_s", "decide", YELLOW),
    ("launch_s", "launch", SKY),
    ("first_step_s", "first training step", BLUE),
)
_MAX_LANES, _MAX_ROWS = 16, 12
_BADGE_SHARE = 0.024  # width of a numbered badge as a share of the panel


def lanes_shown(summary: Summary) -> tuple[Lane, ...]:
    """All lanes, or those with the most changes when there are too many to read."""
    lanes = summary.lanes
    if len(lanes) <= _MAX_LANES:
        return lanes
    hit = {incident.node for incident in summary.incidents}
    busy = [lane for lane in lanes if len(lane.segments) > 1 or lane.node in hit]
    ranked = sorted(busy, key=lambda lane: (lane.node not in hit, -len(lane.segments)))
    chosen = {lane.node for lane in ranked[:_MAX_LANES]}
    return tuple(lane for lane in lanes if lane.node in chosen)


def phases_shown(summary: Summary) -> tuple[Incident, ...]:
    """All incidents, or the longest recoveries when there are too many to read."""
    incidents = summary.incidents
    if len(incidents) <= _MAX_ROWS:
        return incidents
    ranked = sorted(
        incidents, key=lambda i: (i.recovered, -(i.phases.total_s if i.phases else 0.0))
    )
    chosen = {incident.number for incident in ranked[:_MAX_ROWS]}
    return tuple(incident for incident in incidents if incident.number in chosen)


def badge_levels(positions: Sequence[float], width: float) -> list[int]:
    """A row for each badge so that no two overlap; positions rise."""
    ends: list[float] = []
    levels = []
    for position in positions:
        level = next((i for i, end in enumerate(ends) if position - end >= width), len(ends))
        ends[level:level] = [] if level < len(ends) else [position]
        ends[level] = position
        levels.append(level)
    return levels


def draw_loss(axes: Axes, summary: Summary, scale: TimeScale) -> None:
    """Loss against wall-clock time; breaks where nothing trained, lost training steps in orange."""
    axes.set_title("Loss against wall-clock time", pad=8)
    axes.set_ylabel("loss")
    axes.set_xlabel(f"{scale.unit} since the first attempt started")
    axes.set_xlim(*scale.limits)
    losses = _draw_curves(axes, summary, scale)
    levels = badge_levels(
        [scale.at(i.began) for i in summary.incidents], _BADGE_SHARE * scale.length
    )
    _headroom(axes, losses, 1 + max(levels, default=-1))
    low, high = axes.get_ylim()
    for incident, level in zip(summary.incidents, levels):
        began = scale.at(incident.began)
        if incident.interrupted:
            ended = scale.at(summary.end if incident.ended is None else incident.ended)
            axes.axvspan(began, ended, color=PALE, zorder=0, linewidth=0)
        axes.axvline(began, color=RED, linewidth=1.2, zorder=2)
        height = high - (high - low) * (0.05 + 0.085 * level)
        _badge(axes, began, height, incident)
    if not losses:
        axes.text(0.5, 0.4, "no training step yet", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
    _loss_legend(axes, summary)


def _draw_curves(axes: Axes, summary: Summary, scale: TimeScale) -> list[float]:
    """Draws what counts and what was lost; returns all finite losses."""
    kept: dict[int, list[tuple[float, float]]] = {}
    lost: dict[int, list[tuple[float, float]]] = {}
    for step, is_lost in zip(summary.steps, summary.lost):
        if step.loss is not None and math.isfinite(step.loss):
            curve = lost if is_lost else kept
            curve.setdefault(step.attempt, []).append((scale.at(step.time), step.loss))
    few = len(summary.steps) < 250
    for attempt, points in kept.items():
        xs, ys = zip(*thin(points))
        axes.plot(xs, ys, color=BLUE, linewidth=1.8, marker="." if few else "", zorder=3)
        if attempt in lost:  # the lost part starts where the kept part ends
            lost[attempt].insert(0, points[-1])
    for points in lost.values():
        xs, ys = zip(*thin(points))
        axes.plot(xs, ys, color=ORANGE, linewidth=2.6, linestyle=(0, (1.6, 0.9)), zorder=4)
        axes.plot(xs[-1], ys[-1], color=RED, marker="x", markersize=8, markeredgewidth=2, zorder=5)
    return [y for curve in (kept, lost) for points in curve.values() for _, y in points]


def _headroom(axes: Axes, losses: list[float], levels: int) -> None:
    """Limits of the loss axis, with room for the badges above the curve."""
    low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)
    span = (high - low) or max(abs(high), 1.0) * 0.1
    share = min(0.5, 0.03 + 0.085 * levels)
    axes.set_ylim(low - 0.06 * span, low + span * 1.06 / (1 - share))


def _badge(axes: Axes, x: float, y: float, incident: Incident) -> None:
    axes.text(
        x,
        y,
        str(incident.number),
        color="white",
        fontsize=9,
        fontweight="bold",
        ha="center",
        va="center",
        zorder=6,
        bbox={"boxstyle": "circle,pad=0.22", "facecolor": RED, "edgecolor": "white"},
    )


def _loss_legend(axes: Axes, summary: Summary) -> None:
    marks: list[Line2D | Patch] = [Line2D([], [], color=BLUE, linewidth=1.8, label="loss")]
    if any(summary.lost):
        style = (0, (1.6, 0.9))
        label = "lost, done again later"
        marks.append(Line2D([], [], color=ORANGE, linewidth=2.6, linestyle=style, label=label))
        mark = {"marker": "x", "markersize": 7, "markeredgewidth": 2, "linestyle": ""}
        marks.append(Line2D([], [], color=RED, label="training broke off", **mark))  # type: ignore[arg-type]
    if summary.incidents:
        marks.append(Line2D([], [], color=RED, linewidth=1.2, label="incident"))
    if summary.interruptions:
        marks.append(Patch(color=PALE, label="recovering"))
    _legend(axes, marks)


def _legend(axes: Axes, marks: Sequence[Line2D | Patch]) -> None:
    """A legend on the panel's title line, where it can cover nothing."""
    axes.legend(
        handles=list(marks),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(marks),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.1,
    )


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
        _badge(strip, left + 0.019, 0.18, incident)
        text = {"va": "top", "fontsize": 9.5, "linespacing": 1.25}
        strip.text(left + 0.034, 0.10, "\n".join(name), fontweight="bold", **text)
        strip.text(left + 0.034, 0.10, "\n" * len(name) + "\n".join(done), **text)


def _frame(corner: tuple[float, float], width: float, height: float, colour: str) -> Patch:
    return Rectangle(corner, width, height, facecolor="#fafafa", edgecolor=colour, linewidth=1.5)


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1] + " …"]


def draw_lanes(axes: Axes, summary: Summary, lanes: Sequence[Lane], scale: TimeScale) -> None:
    """One lane per node: training, starting, waiting, spare, lost or unfit."""
    axes.set_title("Nodes", pad=8)
    axes.set_xlim(*scale.limits)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_yticks(range(len(lanes)), [lane.node for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False)
    seen = []
    for row, lane in enumerate(lanes):
        axes.axhline(row, color=PALE, linewidth=1, zorder=0)
        for segment in lane.segments:
            left, right = scale.at(segment.start), scale.at(segment.end)
            colour, hatch, _ = STATES[segment.state]
            axes.barh(
                row, right - left, left=left, height=0.7, color=colour, hatch=hatch,
                edgecolor="white", linewidth=0.4, zorder=2,
            )  # fmt: skip
            seen.append(segment.state)
            if right - left > 0.09 * scale.length:
                dark = segment.state in ("training", "lost")
                axes.text(
                    (left + right) / 2, row, segment.state, ha="center", va="center", zorder=4,
                    fontsize=8.5, color="white" if dark else INK,
                    bbox=_plain() if hatch else None,
                )  # fmt: skip
        _lane_note(axes, row, lane)
    for incident in summary.incidents:
        axes.axvline(scale.at(incident.began), color=RED, linewidth=1.0, zorder=3, alpha=0.8)
    marks = [Patch(facecolor=c, hatch=h, edgecolor="white", label=label)
             for state, (c, h, label) in STATES.items() if state in seen]  # fmt: skip
    _legend(axes, marks)
    hidden = len(summary.lanes) - len(lanes)
    if hidden:
        axes.set_title(f"Nodes (those that changed most; {hidden} more)", pad=8)


def _plain() -> dict[str, object]:
    return {"facecolor": "white", "edgecolor": "none", "pad": 1.2}


def _lane_note(axes: Axes, row: int, lane: Lane) -> None:
    """The node's state in Slurm before and after, right of its lane."""
    if lane.before is None and lane.after is None:
        return
    before, after = lane.before or "?", lane.after or "?"
    text = after if before == after else f"{before} → {after}"
    if lane.replaced:
        text += ", replaced"
    axes.text(
        1.01, row, textwrap.shorten(text, 26, placeholder="…"), transform=axes.get_yaxis_transform(),
        va="center", fontsize=8.5, fontweight="bold" if lane.replaced else "normal",
        color=GREEN if lane.replaced else INK,
    )  # fmt: skip
    if row == 0:
        axes.text(
            1.01, -0.95, "in Slurm", transform=axes.get_yaxis_transform(), va="center",
            fontsize=8.5, color=QUIET,
        )  # fmt: skip


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
    _legend(axes, [Patch(color=colour, label=label) for _, label, colour in PHASES])


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
    if not words and incident.phases is None:
        text = f"{name}: {outcome(incident)}"
    axes.text(
        0, row - 0.22, textwrap.shorten(text, 104, placeholder=" …"), va="center", fontsize=8.5
    )


def steps_words(summary: Summary) -> tuple[str, Optional[bool]]:
    """What the comparison of losses computed, broken into lines; see `verdict_on_losses`."""
    text, good = verdict_on_losses(summary)
    return textwrap.fill(text, 56), good


def draw_steps(axes: Axes, summary: Summary) -> None:
    """Losses by training step, with the uninterrupted run below; and whether they are equal."""
    text, good = steps_words(summary)
    axes.set_title("The same by training step", pad=10 + 13 * (text.count("\n") + 1))
    colour = {True: GREEN, False: RED, None: INK}[good]
    axes.text(0.0, 1.03, text, transform=axes.transAxes, va="bottom", fontsize=9, color=colour,
              fontweight="bold")  # fmt: skip
    axes.set_xlabel("training step")
    axes.set_ylabel("loss")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    curves = [(float(s.step), s.loss) for s in summary.baseline_steps if _drawable(s.loss)]
    if curves:
        xs, ys = zip(*thin([(x, y) for x, y in curves if y is not None]))
        axes.plot(xs, ys, color=YELLOW, linewidth=6, label="uninterrupted run", zorder=1)
    kept = [(float(s.step), s.loss) for s, lost in zip(summary.steps, summary.lost)
            if not lost and s.loss is not None and _drawable(s.loss)]  # fmt: skip
    if kept:
        xs, ys = zip(*thin(kept))
        axes.plot(xs, ys, color=BLUE, linewidth=1.4, label="this run", zorder=3)
    label: Optional[str] = "resumed from"
    for attempt in summary.attempts[1:]:
        axes.axvline(attempt.resume_step, color=RED, linewidth=0.9, zorder=2, label=label)
        label = None
    if kept or curves:
        axes.legend(loc="upper right", frameon=False, fontsize=9)


def _drawable(loss: Optional[float]) -> bool:
    return loss is not None and math.isfinite(loss)
