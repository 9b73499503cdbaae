"""One picture from which somebody who was not there understands what happened to a run.

From top to bottom: the conclusion as title; a box per incident with what happened and what was
done; loss against wall-clock time; a lane per node; the phases of every recovery; losses by
training step. Drawn 1200 px wide, saved at twice that. Colours are those of Okabe and Ito, which
colour-blind people can tell apart; every colour is also told by position, line style or a word.
"""

from __future__ import annotations

import io
from typing import Any, Optional

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from resume.report.headline import headline, subline
from resume.report.marks import INK, QUIET
from resume.report.panels import draw_lanes, draw_loss, draw_steps, lanes_shown, steps_words
from resume.report.recoveries import (
    MAX_CALLOUTS,
    callout_lines,
    draw_callouts,
    draw_phases,
    phases_shown,
)
from resume.report.scale import TimeScale
from resume.report.summary import Summary

WIDTH_INCHES = 12.0  # 1200 px at 100 dpi
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "text.parse_math": False,  # a $ in a reason is a $
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
}


def draw_png(summary: Summary) -> bytes:
    """The picture as PNG, 2400 px wide."""
    with mpl.rc_context(_STYLE):
        figure = draw_figure(summary)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def draw_figure(summary: Summary) -> Figure:
    """The figure; a Figure of its own, never pyplot, so that no window system is touched."""
    page = _Page(summary)
    figure = Figure(figsize=(WIDTH_INCHES, page.height), facecolor="white")
    scale = TimeScale.of(summary.start, summary.end)
    top = page.height
    _fit(figure, 0.02, 1 - 0.32 / top, headline(summary), 15, bold=True)
    _fit(figure, 0.02, 1 - 0.62 / top, subline(summary), 10)
    if summary.why:
        _fit(figure, 0.02, 1 - 0.86 / top, f"Stopped because {summary.why}", 10)
    loss = page.axes(figure, "loss")
    draw_loss(loss, summary, scale)
    lanes: Optional[Axes] = None
    if page.lanes:
        lanes = page.axes(figure, "lanes")
        draw_lanes(lanes, summary, page.lanes, scale)
    if page.callouts:
        draw_callouts(page.axes(figure, "callouts"), summary, page.callouts)
    if page.phases:
        draw_phases(page.axes(figure, "phases"), page.phases, words=page.callouts == 0.0)
    draw_steps(page.axes(figure, "steps"), summary)
    return figure


def _fit(figure: Figure, x: float, y: float, text: str, size: float, *, bold: bool = False) -> None:
    """A line of text, made smaller until it fits the width, then cut."""
    weight = "bold" if bold else "normal"
    line = figure.text(x, y, text, fontsize=size, fontweight=weight, va="center", parse_math=False)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    room = figure.bbox.width * (0.985 - x)
    width = line.get_window_extent(renderer).width
    if width > room:
        smaller = max(9.0, 0.99 * size * room / width)
        line.set_fontsize(smaller)
        width = line.get_window_extent(renderer).width
    if width > room:
        line.set_text(text[: int(len(text) * room / width) - 1] + "…")


class _Page:
    """Where every panel stands, in inches from the top; what has no content takes no room."""

    def __init__(self, summary: Summary) -> None:
        incidents = summary.incidents
        self.lanes = lanes_shown(summary)
        self.words, _ = steps_words(summary)
        self.phases = phases_shown(summary)
        self.callouts = 0.0  # inches
        if 1 <= len(incidents) <= MAX_CALLOUTS:
            most = max(len(name) + len(done) for name, done in callout_lines(summary))
            self.callouts = 0.24 + 0.166 * most
        row = 0.42 if self.callouts else 0.60
        bottom = max(1.9, 0.35 + row * len(self.phases)) if self.phases else 1.9
        heights = [
            ("title", 1.0 if summary.why else 0.78),
            ("callouts", self.callouts),
            ("loss", 3.1),
            ("lanes", 0.27 * len(self.lanes)),
            ("bottom", bottom),
        ]
        gaps = {"title": 0.12, "callouts": 0.36, "loss": 0.75 if self.lanes else 0.0}
        gaps |= {"lanes": 0.66, "bottom": 0.55}
        if not self.lanes:
            gaps["loss"], gaps["lanes"] = 0.95, 0.0
        if not self.callouts:
            gaps["callouts"] = 0.26
        self.places: dict[str, tuple[float, float]] = {}
        y = 0.0
        for name, height in heights:
            self.places[name] = (y, height)
            y += height + gaps.get(name, 0.0)
        self.height = y

    def axes(self, figure: Figure, name: str) -> Axes:
        left, right = 0.075, 0.985 if not self.lanes else 0.86
        place = name
        if name == "callouts":
            left, right = 0.02, 0.985
        if name in ("phases", "steps"):
            place = "bottom"
            left, right = (0.075, 0.60) if name == "phases" else (0.665, 0.985)
            if name == "steps" and not self.phases:
                left = 0.075
        y, height = self.places[place]
        if name == "steps":
            words = 0.18 * (self.words.count("\n") + 1)
            y, height = y + words, min(height, 2.8) - words
        bottom = 1 - (y + height) / self.height
        return figure.add_axes((left, bottom, right - left, height / self.height))
