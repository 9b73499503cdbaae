"""Panels: loss against time, nodes against time, loss by training step."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Optional

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from resume.report.headline import verdict_on_losses
from resume.report.lanes import Lane
from resume.report.marks import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    QUIET,
    RED,
    SKY,
    YELLOW,
    badge,
    legend,
)
from resume.report.scale import TimeScale
from resume.report.summary import Summary
from resume.report.thin import thin

# state -> colour, hatch, what the legend says
STATES = {
    "training": (BLUE, "", "training"),
    "starting": (SKY, "", "starting"),
    "waiting": (YELLOW, "", "waiting, not training"),
    "spare": ("#d9d9d9", "", "spare"),
    "lost": (INK, "", "lost"),
    "unfit": (RED, "////", "unfit"),
}
_MAX_LANES = 16
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
        badge(axes, began, height, incident)
    if not losses:
        axes.text(0.5, 0.4, "no training step yet", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
    for change in summary.changes:
        axes.axvline(scale.at(change.time), color=GREEN, linewidth=1.6, zorder=2)
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
    if summary.changes:
        marks.append(Line2D([], [], color=GREEN, linewidth=1.6, label="changed by a person"))
    if summary.interruptions:
        marks.append(Patch(color=PALE, label="recovering"))
    legend(axes, marks)


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
    legend(axes, marks)
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
    text = textwrap.shorten(text, 26, placeholder="…")
    axes.text(
        1.01, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5,
        fontweight="bold" if lane.replaced else "normal",
        color=GREEN if lane.replaced else INK,
    )  # fmt: skip
    if row == 0:
        axes.text(
            1.01, -0.95, "in Slurm", transform=axes.get_yaxis_transform(), va="center",
            fontsize=8.5, color=QUIET,
        )  # fmt: skip


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
    label = "settings changed"
    for change in summary.changes:
        if change.attempt is not None:
            axes.axvline(change.step, color=GREEN, linewidth=1.6, zorder=2, label=label)
            label = None
    if kept or curves:
        axes.legend(loc="upper right", frameon=False, fontsize=9)


def _drawable(loss: Optional[float]) -> bool:
    return loss is not None and math.isfinite(loss)
